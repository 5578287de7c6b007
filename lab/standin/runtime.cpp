// A stand-in for the CUDA runtime and driver: PyTorch's own CUDA code runs on it without a card. Device memory is host
// memory that is not touched until it is copied to, a kernel launch does nothing, and everything is done at once.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

constexpr size_t kGranularity = 2 << 20;
constexpr size_t kPage = 4096;

size_t number(const char* name, size_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

const size_t total = number("STANDIN_TOTAL", 150109880320);  // what an H200 says it has
const size_t context = number("STANDIN_CONTEXT", 500 << 20);
std::mutex guard;
size_t used = 0;
std::map<uint64_t, size_t> ranges;  // address -> size of what cudaMalloc gave
uint64_t last_handle = 0x1000;

template <typename Handle>
Handle fresh() {
  std::lock_guard<std::mutex> lock(guard);
  return reinterpret_cast<Handle>(last_handle += 16);
}

size_t rounded(size_t size) {
  return (size + kGranularity - 1) / kGranularity * kGranularity;
}

bool on_device(const void* address) {
  std::lock_guard<std::mutex> lock(guard);
  const auto place = reinterpret_cast<uint64_t>(address);
  auto range = ranges.upper_bound(place);
  if (range == ranges.begin()) return false;
  --range;
  return place < range->first + range->second;
}

// Zeros need no memory: whole pages are given back, and read as zeros.
void fill(void* address, int value, size_t size) {
  char* from = static_cast<char*>(address);
  if (value == 0 && size > 16 * kPage) {
    char* first = reinterpret_cast<char*>((reinterpret_cast<uint64_t>(from) + kPage - 1) / kPage * kPage);
    size_t pages = (from + size - first) / kPage * kPage;
    std::memset(from, 0, first - from);
    madvise(first, pages, MADV_DONTNEED);
    std::memset(first + pages, 0, from + size - (first + pages));
    return;
  }
  std::memset(address, value, size);
}

int attribute(int name) {
  switch (name) {
    case cudaDevAttrMaxThreadsPerBlock: return 1024;
    case cudaDevAttrMaxBlockDimX: return 1024;
    case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY: return 65535;
    case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 49152;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return 232448;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 233472;
    case cudaDevAttrReservedSharedMemoryPerBlock: return 1024;
    case cudaDevAttrTotalConstantMemory: return 65536;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxRegistersPerBlock: return 65536;
    case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrMultiProcessorCount: return 132;
    case cudaDevAttrClockRate: return 1980000;
    case cudaDevAttrMemoryClockRate: return 3201000;
    case cudaDevAttrGlobalMemoryBusWidth: return 6144;
    case cudaDevAttrL2CacheSize: return 62914560;
    case cudaDevAttrComputeCapabilityMajor: return 9;
    case cudaDevAttrComputeCapabilityMinor: return 0;
    case cudaDevAttrTextureAlignment: return 512;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrCanMapHostMemory: return 1;
    case cudaDevAttrAsyncEngineCount: return 3;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: return 1;
    default: return 0;
  }
}

struct Capture {
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
};
std::map<cudaStream_t, Capture> captures;
unsigned long long last_capture = 0;

}  // namespace

extern "C" {

// What is called here and stands for something that may take memory on a card is said once, at the end.
void standin_said(const char* name) {
  static std::set<std::string> names;
  static std::mutex names_guard;
  std::lock_guard<std::mutex> lock(names_guard);
  if (!names.insert(name).second) return;
  if (const char* path = std::getenv("STANDIN_LOG")) {
    if (FILE* log = std::fopen(path, "a")) {
      std::fprintf(log, "%s\n", name);
      std::fclose(log);
    }
  }
}

// --- memory ---

cudaError_t cudaMalloc(void** address, size_t size) {
  const size_t whole = rounded(size);
  std::lock_guard<std::mutex> lock(guard);
  if (used + whole + context > total) return cudaErrorMemoryAllocation;
  void* place = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return cudaErrorMemoryAllocation;
  used += whole;
  ranges[reinterpret_cast<uint64_t>(place)] = whole;
  *address = place;
  return cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  std::lock_guard<std::mutex> lock(guard);
  auto range = ranges.find(reinterpret_cast<uint64_t>(address));
  if (range == ranges.end()) return cudaSuccess;
  munmap(address, range->second);
  used -= range->second;
  ranges.erase(range);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** address, size_t size, cudaStream_t) { return cudaMalloc(address, size); }
cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return cudaFree(address); }

cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  *free = total - context - used;
  *all = total;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
  return posix_memalign(address, kPage, size ? size : 1) ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeHost(void* address) {
  std::free(address);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  if (size) std::memmove(to, from, size);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, size, kind);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t) {
  return cudaMemcpy(to, from, size, cudaMemcpyDefault);
}
cudaError_t cudaMemcpy2DAsync(
    void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind,
    cudaStream_t) {
  for (size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  }
  return cudaSuccess;
}
cudaError_t cudaMemset(void* address, int value, size_t size) {
  if (size) fill(address, value, size);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* address, int value, size_t size, cudaStream_t) {
  return cudaMemset(address, value, size);
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  static char symbols[1 << 16];
  *address = symbols;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  std::memset(attributes, 0, sizeof *attributes);
  const bool device = on_device(address);
  attributes->type = device ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->device = device ? 0 : cudaInvalidDeviceId;
  attributes->devicePointer = device ? const_cast<void*>(address) : nullptr;
  return cudaSuccess;
}

// --- the device ---

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "NVIDIA H200");
  properties->totalGlobalMem = total;
  properties->sharedMemPerBlock = attribute(cudaDevAttrMaxSharedMemoryPerBlock);
  properties->sharedMemPerBlockOptin = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  properties->sharedMemPerMultiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  properties->reservedSharedMemPerBlock = attribute(cudaDevAttrReservedSharedMemoryPerBlock);
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  for (int dim = 0; dim < 3; ++dim) {
    properties->maxThreadsDim[dim] = attribute(cudaDevAttrMaxBlockDimX + dim);
    properties->maxGridSize[dim] = attribute(cudaDevAttrMaxGridDimX + dim);
  }
  properties->totalConstMem = 65536;
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->l2CacheSize = attribute(cudaDevAttrL2CacheSize);
  properties->memoryBusWidth = attribute(cudaDevAttrGlobalMemoryBusWidth);
  properties->textureAlignment = 512;
  properties->concurrentKernels = properties->unifiedAddressing = properties->cooperativeLaunch = 1;
  properties->managedMemory = properties->canMapHostMemory = 1;
  properties->asyncEngineCount = 3;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int) {
  *value = attribute(name);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int) {
  std::snprintf(id, size, "0000:01:00.0");
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "cudaError"; }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : error == cudaSuccess ? "no error" : "error";
}

// --- streams, events, graphs ---

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = fresh<cudaStream_t>();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = fresh<cudaEvent_t>();
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1.0f;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  std::lock_guard<std::mutex> lock(guard);
  *status = captures.count(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
    const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges, size_t* count) {
  std::lock_guard<std::mutex> lock(guard);
  auto capture = captures.find(stream);
  const bool active = capture != captures.end();
  *status = active ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = active ? capture->second.id : 0;
  if (graph) *graph = active ? capture->second.graph : nullptr;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  auto graph = fresh<cudaGraph_t>();
  std::lock_guard<std::mutex> lock(guard);
  captures[stream] = {++last_capture, graph};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  std::lock_guard<std::mutex> lock(guard);
  *graph = captures[stream].graph;
  captures.erase(stream);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* graph, cudaGraph_t, unsigned long long) {
  *graph = fresh<cudaGraphExec_t>();
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
  function(data);
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
  function(stream, cudaSuccess, data);
  return cudaSuccess;
}

// --- kernels ---

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int threads, size_t, unsigned) {
  const int warps = (threads + 31) / 32;
  *blocks = warps ? std::min(32, 64 / warps) : 32;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared, 0);
}
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = *block = dim3{1, 1, 1};
  *shared = 0;
  *static_cast<void**>(stream) = nullptr;
  return cudaSuccess;
}

// --- the driver ---

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) { return static_cast<CUresult>(cudaDriverGetVersion(version)); }
CUresult cuDeviceGet(CUdevice* device, int) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) { return static_cast<CUresult>(cudaGetDeviceCount(count)); }
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::snprintf(name, size, "NVIDIA H200");
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute name, CUdevice) {
  *value = attribute(name);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* size, CUdevice) {
  *size = total;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* current) {
  *current = reinterpret_cast<CUcontext>(0x10);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) { return cuDeviceGet(device, 0); }
CUresult cuDevicePrimaryCtxRetain(CUcontext* primary, CUdevice) { return cuCtxGetCurrent(primary); }
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "error";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** text) { return cuGetErrorString(CUDA_SUCCESS, text); }
CUresult cuStreamGetCtx(CUstream, CUcontext* current) { return cuCtxGetCurrent(current); }
CUresult cuCtxGetLimit(size_t* value, CUlimit) {
  *value = 1024;
  return CUDA_SUCCESS;
}
CUresult cuLibraryLoadData(
    CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
  *library = fresh<CUlibrary>();
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary, const char*) {
  *kernel = fresh<CUkernel>();
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetModule(CUmodule* module, CUlibrary) {
  *module = fresh<CUmodule>();
  return CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel) {
  *function = fresh<CUfunction>();
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction, const CUlaunchConfig*) {
  *size = 16;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int* count, CUfunction, const CUlaunchConfig*) {
  *count = 132;
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void*) {
  *module = fresh<CUmodule>();
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(module, nullptr);
}
CUresult cuModuleLoad(CUmodule* module, const char*) { return cuModuleLoadData(module, nullptr); }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char*) {
  *function = fresh<CUfunction>();
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute name, CUfunction) {
  *value = name == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : name == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
  return CUDA_SUCCESS;
}
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute name, CUkernel, CUdevice) {
  return cuFuncGetAttribute(value, name, nullptr);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int threads, size_t shared) {
  return static_cast<CUresult>(cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, nullptr, threads, shared));
}
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute name, CUdeviceptr address) {
  if (!on_device(reinterpret_cast<void*>(address))) return CUDA_ERROR_INVALID_VALUE;
  if (name == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) *static_cast<CUdeviceptr*>(value) = address;
  if (name == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) *static_cast<unsigned*>(value) = CU_MEMORYTYPE_DEVICE;
  return CUDA_SUCCESS;
}

CUresult cuGetExportTable(const void** table, const CUuuid*) {
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

static CUresult nothing() { return CUDA_SUCCESS; }

static void* driver_function(const char* name) {
  static void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* found = self ? dlsym(self, name) : nullptr;
  if (found) return found;
  standin_said(name);
  return reinterpret_cast<void*>(nothing);
}
cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  *function = driver_function(symbol);
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
CUresult cuGetProcAddress_v2(
    const char* symbol, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult* result) {
  *function = driver_function(symbol);
  if (result) *result = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}
}
