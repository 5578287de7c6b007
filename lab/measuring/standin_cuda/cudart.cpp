// A stand-in for the CUDA runtime library under which PyTorch's allocator runs on a machine without a GPU.
// Memory is only counted and addresses are made up. What is not here is generated as a function that returns 0.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>

namespace {

constexpr size_t kGranularity = 2 << 20;

size_t number(const char* name, size_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

const size_t total = number("STANDIN_TOTAL", size_t{16} << 30);
const size_t capacity = number("STANDIN_CAPACITY", total);
size_t used = 0;
std::map<uint64_t, size_t> ranges;   // address -> size, of segments and of reserved addresses
std::map<uint64_t, size_t> handles;  // physical memory of expandable segments
std::mt19937_64 chance(number("STANDIN_SEED", 1));

size_t rounded(size_t size) {
  return (size + kGranularity - 1) / kGranularity * kGranularity;
}

// Addresses in no order at all: that tells apart rules that a real driver's growing addresses would not.
uint64_t place(size_t size) {
  for (;;) {
    uint64_t address = 0x700000000000ull + chance() % (1 << 22) * kGranularity;
    auto next = ranges.lower_bound(address);
    bool fits = next == ranges.end() || next->first >= address + size;
    if (fits && next != ranges.begin()) {
      --next;
      fits = next->first + next->second <= address;
    }
    if (fits) {
      ranges[address] = size;
      return address;
    }
  }
}

CUresult reserve(CUdeviceptr* address, size_t size, size_t, CUdeviceptr, unsigned long long) {
  *address = place(size);
  return CUDA_SUCCESS;
}

CUresult unreserve(CUdeviceptr address, size_t) {
  ranges.erase(address);
  return CUDA_SUCCESS;
}

CUresult create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp*, unsigned long long) {
  if (used + size > capacity) return CUDA_ERROR_OUT_OF_MEMORY;
  static uint64_t last = 0;
  used += size;
  handles[*handle = ++last] = size;
  return CUDA_SUCCESS;
}

CUresult release(CUmemGenericAllocationHandle handle) {
  used -= handles[handle];
  handles.erase(handle);
  return CUDA_SUCCESS;
}

CUresult attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult nothing() {
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** address, size_t size) {
  size = rounded(size);
  if (used + size > capacity) return cudaErrorMemoryAllocation;
  used += size;
  *address = reinterpret_cast<void*>(place(size));
  return cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  auto range = ranges.find(reinterpret_cast<uint64_t>(address));
  if (range == ranges.end()) return cudaSuccess;
  used -= range->second;
  ranges.erase(range);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  *free = capacity - used;
  *all = total;
  return cudaSuccess;
}

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
  std::strcpy(properties->name, "stand-in");
  properties->totalGlobalMem = total;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t) {
  return "error";
}

const char* cudaGetErrorString(cudaError_t) {
  return "error";
}

cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  const std::string name(symbol);
  *function = reinterpret_cast<void*>(nothing);
  if (name == "cuMemAddressReserve") *function = reinterpret_cast<void*>(reserve);
  if (name == "cuMemAddressFree") *function = reinterpret_cast<void*>(unreserve);
  if (name == "cuMemCreate") *function = reinterpret_cast<void*>(create);
  if (name == "cuMemRelease") *function = reinterpret_cast<void*>(release);
  if (name == "cuDeviceGetAttribute") *function = reinterpret_cast<void*>(attribute);
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
}
