// Puts a list of calls (standard input) to PyTorch's own allocator and prints the trace it kept.
//   m SIZE STREAM   allocate        f N   free the N-th allocation        e   empty the cache
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

using c10::cuda::CUDACachingAllocator::RecordContext;

int main(int count, char** arguments) {
  auto* allocator = c10::cuda::CUDACachingAllocator::get();
  allocator->init(1);
  const double fraction = count > 1 ? std::atof(arguments[1]) : 1.0;
  if (fraction < 1.0) allocator->setMemoryFraction(fraction, 0);
  allocator->recordHistory(true, nullptr, size_t{1} << 40, RecordContext::NEVER, false, {});

  std::vector<void*> allocations;
  char line[128];
  while (std::fgets(line, sizeof line, stdin)) {
    long long number = 0, stream = 0;
    std::sscanf(line + 1, "%lld %lld", &number, &stream);
    if (line[0] == 'm') {
      void* address = nullptr;
      try {
        address = allocator->raw_alloc_with_stream(number, reinterpret_cast<cudaStream_t>(stream));
      } catch (const c10::OutOfMemoryError&) {
      }
      allocations.push_back(address);
    } else if (line[0] == 'f' && allocations[number]) {
      allocator->raw_delete(allocations[number]);
      allocations[number] = nullptr;
    } else if (line[0] == 'e') {
      allocator->emptyCache({0, 0});
    }
  }

  const auto stats = allocator->getDeviceStats(0);
  const auto print = [](const char* name, long long value) { std::printf("%s %lld\n", name, value); };
  print("allocated_bytes.all.current", stats.allocated_bytes[0].current);
  print("allocated_bytes.all.peak", stats.allocated_bytes[0].peak);
  print("allocated_bytes.all.allocated", stats.allocated_bytes[0].allocated);
  print("inactive_split_bytes.all.current", stats.inactive_split_bytes[0].current);
  print("requested_bytes.all.peak", stats.requested_bytes[0].peak);
  print("reserved_bytes.all.current", stats.reserved_bytes[0].current);
  print("reserved_bytes.all.peak", stats.reserved_bytes[0].peak);
  print("reserved_bytes.all.allocated", stats.reserved_bytes[0].allocated);
  print("reserved_bytes.small_pool.current", stats.reserved_bytes[1].current);
  print("segment.all.current", stats.segment[0].current);
  print("allocation.all.peak", stats.allocation[0].peak);
  print("num_alloc_retries", stats.num_alloc_retries);
  print("num_ooms", stats.num_ooms);
  print("num_device_alloc", stats.num_device_alloc);
  print("num_device_free", stats.num_device_free);
  std::puts("trace");
  const auto snapshot = allocator->snapshot({0, 0});
  for (const auto& entry : snapshot.device_traces[0])
    std::printf(
        "%d %lld %lld %lld\n",
        static_cast<int>(entry.action_),
        static_cast<long long>(entry.addr_),
        static_cast<long long>(entry.size_),
        reinterpret_cast<long long>(entry.stream_));
}
