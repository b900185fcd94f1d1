
#if IS_ENABLED(CONFIG_LIBCOPY)
#include "../../drivers/misc/libcopy/base/params.h"
#include "../../drivers/misc/libcopy/abstractions/shim.h"
#include "../../drivers/misc/libcopy/engine/dma.h"
#endif
