#include "bindings.h"

NB_MODULE(_native, module) {
    aquiline::bind_machine(module);
    aquiline::bind_packed_linear(module);
    aquiline::bind_kernels(module);
    aquiline::bind_forward(module);
    aquiline::bind_measure(module);
    aquiline::bind_sampling(module);
    aquiline::bind_draft(module);
    aquiline::bind_lookup(module);
}
