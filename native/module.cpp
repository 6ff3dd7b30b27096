#include "bindings.h"

NB_MODULE(_native, module) {
    // A program may end while something of it still holds an engine; its error output is not ours to write to.
    nanobind::set_leak_warnings(false);
    aquiline::bind_machine(module);
    aquiline::bind_packed_linear(module);
    aquiline::bind_kernels(module);
    aquiline::bind_forward(module);
    aquiline::bind_measure(module);
    aquiline::bind_sampling(module);
    aquiline::bind_draft(module);
    aquiline::bind_lookup(module);
}
