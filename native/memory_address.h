// Memory of a tensor as it comes from Python.
#pragma once

#include <cstdint>

namespace aquiline {

using Address = std::uintptr_t;

template <class T>
T* pointer(Address address) {
    return reinterpret_cast<T*>(address);
}

}  // namespace aquiline
