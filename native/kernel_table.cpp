#include "kernel_table.h"

namespace aquiline {

const KernelTable& kernels_for(Level level) {
#if defined(AQUILINE_HAS_X86_KERNELS)
    if (level == Level::avx512) return avx512_kernels;
    if (level == Level::avx2) return avx2_kernels;
#endif
    (void)level;
    return portable_kernels;
}

}  // namespace aquiline
