// Stand-ins for the libraries that PyTorch's CUDA code calls: cuBLAS multiplies nothing, cuDNN is asked for plans as for
// the card that is described to it, NCCL knows one rank.
// Half precision needs a header that torch does not bring; only their names occur here.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
struct __half;
struct __nv_bfloat16;
#include <cublas_v2.h>
#include <cublasLt.h>
#include <cudnn.h>
#include <dlfcn.h>
#include <nccl.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

extern "C" void standin_said(const char* name);

namespace {

std::mutex guard;

// PyTorch keeps a workspace for each handle, and a handle for each thread.
template <typename Handle>
Handle handle_of() {
  static std::atomic<uintptr_t> last{0x40};
  return reinterpret_cast<Handle>(last += 16);
}

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 4;
  }
}

// What one rank gets of a collective is what it gives.
ncclResult_t handed_over(void* to, const void* from, size_t count, ncclDataType_t type) {
  if (to != from) std::memmove(to, from, count * size_of(type));
  return ncclSuccess;
}

cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;

template <typename Function>
Function real(const char* name) {
  void* library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function>(dlsym(library ? library : RTLD_NEXT, name));
}

std::map<cudnnBackendDescriptor_t, cudnnBackendDescriptorType_t> kinds;

const char* kDevice = R"({"deviceVer":900,"driverVer":13000,"cudaDeviceId":0,"totalGlobalMem":150109880320,
"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":132,
"warpSize":32,"maxSharedMemoryPerBlock":49152,"reservedSharedMemoryPerBlock":1024,
"maxSharedMemoryPerBlockOptin":232448,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,
"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,
"memClockRateKHz":3201000,"l2CacheSize":62914560,"deviceName":"NVIDIA H200"})";

cudnnBackendDescriptor_t device() {
  static cudnnBackendDescriptor_t described = [] {
    cudnnBackendDescriptor_t made = nullptr;
    real<cudnnStatus_t (*)(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t*)>("cudnnBackendCreateDescriptor")(
        CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &made);
    real<cudnnStatus_t (*)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t,
                           const void*)>("cudnnBackendSetAttribute")(
        made, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, std::strlen(kDevice), kDevice);
    real<cudnnStatus_t (*)(cudnnBackendDescriptor_t)>("cudnnBackendFinalize")(made);
    return made;
  }();
  return described;
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = handle_of<cublasHandle_t>();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t* mode) {
  *mode = math_mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t mode) {
  math_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t, cublasPointerMode_t* mode) {
  *mode = pointer_mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t, cublasPointerMode_t mode) {
  pointer_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t* results, int* count) {
  std::memset(results, 0, sizeof *results);
  results->state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return 130000; }

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = handle_of<cudnnHandle_t>();
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnGetStream(cudnnHandle_t, cudaStream_t* stream) {
  *stream = nullptr;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind, cudnnBackendDescriptor_t* made) {
  auto status = real<decltype(&cudnnBackendCreateDescriptor)>("cudnnBackendCreateDescriptor")(kind, made);
  std::lock_guard<std::mutex> lock(guard);
  kinds[*made] = kind;
  return status;
}
cudnnStatus_t cudnnBackendSetAttribute(
    cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
    int64_t count, const void* values) {
  if (type == CUDNN_TYPE_HANDLE) return CUDNN_STATUS_SUCCESS;
  return real<decltype(&cudnnBackendSetAttribute)>("cudnnBackendSetAttribute")(descriptor, name, type, count, values);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  cudnnBackendDescriptorType_t kind;
  {
    std::lock_guard<std::mutex> lock(guard);
    kind = kinds[descriptor];
  }
  auto set = real<decltype(&cudnnBackendSetAttribute)>("cudnnBackendSetAttribute");
  auto described = device();
  if (kind == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
    set(descriptor, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &described);
  if (kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
    set(descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &described);
  if (kind == CUDNN_BACKEND_ENGINE_DESCRIPTOR)
    set(descriptor, CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &described);
  return real<decltype(&cudnnBackendFinalize)>("cudnnBackendFinalize")(descriptor);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) {
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnActivationDescriptor_t, size_t* size) {
  standin_said("cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize");
  *size = 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t* size) {
  standin_said("cudnnGetBatchNormalizationBackwardExWorkspaceSize");
  *size = 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnActivationDescriptor_t,
    const cudnnTensorDescriptor_t, size_t* size) {
  standin_said("cudnnGetBatchNormalizationTrainingExReserveSpaceSize");
  *size = 0;
  return CUDNN_STATUS_SUCCESS;
}

// One rank, which has nobody to wait for.
ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof *id);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int, ncclUniqueId, int, ncclConfig_t*) {
  *made = handle_of<ncclComm_t>();
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* made, int, ncclUniqueId, int) {
  *made = handle_of<ncclComm_t>();
  return ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t* made, ncclConfig_t*) {
  *made = handle_of<ncclComm_t>();
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t, int* count) {
  *count = 1;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t, int* rank) {
  *rank = 0;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(
    const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t, cudaStream_t) {
  return handed_over(to, from, count, type);
}
ncclResult_t ncclReduce(
    const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t, int, ncclComm_t, cudaStream_t) {
  return handed_over(to, from, count, type);
}
ncclResult_t ncclReduceScatter(
    const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t, cudaStream_t) {
  return handed_over(to, from, count, type);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t, cudaStream_t) {
  return handed_over(to, from, count, type);
}
ncclResult_t ncclBroadcast(
    const void* from, void* to, size_t count, ncclDataType_t type, int, ncclComm_t, cudaStream_t) {
  return handed_over(to, from, count, type);
}
}
