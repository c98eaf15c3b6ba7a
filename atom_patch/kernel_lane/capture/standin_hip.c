/* A HIP runtime without a device: code objects and launches go to two callbacks, all else succeeds and does nothing.
 *
 * Only the 22 functions that flydsl's libfly_jit_runtime.so imports (nm -D). The library must be named
 * libamdhip64.so.7 and carry the symbol version hip_4.2, or the loader does not accept it.
 * Handles are small integers. "Device" memory is host memory, so copies and fills are done at once. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int (*load_callback)(const void *image);                  /* returns a module number > 0, or 0 to refuse */
typedef int (*function_callback)(int module, const char *name);   /* returns a function number > 0, or 0 */
typedef int (*launch_callback)(int function, const unsigned *grid, const unsigned *block, unsigned lds, void **args);

static load_callback on_load;
static function_callback on_function;
static launch_callback on_launch;

enum { success = 0, invalid_value = 1, invalid_image = 200, not_found = 500, launch_failure = 719 };

void standin_connect(load_callback load, function_callback function, launch_callback launch) {
    on_load = load;
    on_function = function;
    on_launch = launch;
}

int hipModuleLoadData(void **module, const void *image) {
    int number = on_load ? on_load(image) : 0;
    *module = (void *)(intptr_t)number;
    return number > 0 ? success : invalid_image;
}
int hipModuleGetFunction(void **function, void *module, const char *name) {
    int number = on_function ? on_function((int)(intptr_t)module, name) : 0;
    *function = (void *)(intptr_t)number;
    return number > 0 ? success : not_found;
}
int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned lds, void *stream, void **args, void **extra) {
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    (void)stream;
    if (!on_launch || extra) return invalid_value;
    return on_launch((int)(intptr_t)function, grid, block, lds, args) ? launch_failure : success;
}
int hipModuleUnload(void *module) { (void)module; return success; }

int hipMalloc(void **p, size_t n) { *p = calloc(1, n); return *p || !n ? success : invalid_value; }
int hipFree(void *p) { free(p); return success; }
int hipMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream) {
    (void)kind; (void)stream;
    memcpy(to, from, n);
    return success;
}
int hipMemsetD16Async(void *p, unsigned short value, size_t n, void *stream) {
    (void)stream;
    for (size_t i = 0; i < n; i++) ((unsigned short *)p)[i] = value;
    return success;
}
int hipMemsetD32Async(void *p, int value, size_t n, void *stream) {
    (void)stream;
    for (size_t i = 0; i < n; i++) ((int *)p)[i] = value;
    return success;
}
int hipHostRegister(void *p, size_t n, unsigned flags) { (void)p; (void)n; (void)flags; return success; }
int hipHostUnregister(void *p) { (void)p; return success; }
int hipHostGetDevicePointer(void **device, void *host, unsigned flags) { (void)flags; *device = host; return success; }
int hipSetDevice(int device) { (void)device; return success; }

int hipStreamCreate(void **stream) { *stream = 0; return success; }
int hipStreamDestroy(void *stream) { (void)stream; return success; }
int hipStreamSynchronize(void *stream) { (void)stream; return success; }
int hipStreamWaitEvent(void *stream, void *event, unsigned flags) { (void)stream; (void)event; (void)flags; return success; }
int hipEventCreateWithFlags(void **event, unsigned flags) { (void)flags; *event = 0; return success; }
int hipEventDestroy(void *event) { (void)event; return success; }
int hipEventSynchronize(void *event) { (void)event; return success; }
int hipEventRecord(void *event, void *stream) { (void)event; (void)stream; return success; }
const char *hipGetErrorName(int error) { return error == success ? "hipSuccess" : "refused by the stand-in HIP"; }
