// Every part of the extension module adds its own functions and classes.

#pragma once

#include <nanobind/nanobind.h>

namespace aquiline {

void bind_draft(nanobind::module_& module);
void bind_forward(nanobind::module_& module);
void bind_kernels(nanobind::module_& module);
void bind_lookup(nanobind::module_& module);
void bind_machine(nanobind::module_& module);
void bind_measure(nanobind::module_& module);
void bind_packed_linear(nanobind::module_& module);
void bind_sampling(nanobind::module_& module);

}  // namespace aquiline
