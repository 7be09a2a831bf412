// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/record/cuda_driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>

namespace gemmd {
namespace {

// Constants of cuda.h.
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;
constexpr int kErrorLog = 5;
constexpr int kErrorLogBytes = 6;

// The content of D before a launch: a value that no instruction is likely to produce.
constexpr unsigned kPoison = 0xdeadbeef;

template <typename Function>
bool Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

// Comes from the management library, which is installed with the driver.
std::string DriverVersion() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library == nullptr) return "";
  int (*init)() = nullptr;
  int (*version)(char*, unsigned) = nullptr;
  std::array<char, 96> text = {};
  const bool is_known = Find(library, "nvmlInit_v2", init) &&
                        Find(library, "nvmlSystemGetDriverVersion", version) && init() == 0 &&
                        version(text.data(), text.size()) == 0;
  return is_known ? text.data() : "";
}

}  // namespace

struct Gpu::Library {
  bool FindAll(void* library) {
    return Find(library, "cuInit", init) && Find(library, "cuGetErrorString", error_string) &&
           Find(library, "cuDriverGetVersion", driver_version) &&
           Find(library, "cuDeviceGet", device) && Find(library, "cuDeviceGetName", device_name) &&
           Find(library, "cuDeviceGetAttribute", device_attribute) &&
           Find(library, "cuDevicePrimaryCtxRetain", retain) &&
           Find(library, "cuDevicePrimaryCtxRelease_v2", release) &&
           Find(library, "cuDevicePrimaryCtxReset_v2", reset) &&
           Find(library, "cuCtxSetCurrent", set_current) &&
           Find(library, "cuCtxSynchronize", synchronize) &&
           Find(library, "cuModuleLoadDataEx", load) && Find(library, "cuModuleUnload", unload) &&
           Find(library, "cuModuleGetFunction", function) &&
           Find(library, "cuMemAlloc_v2", allocate) && Find(library, "cuMemFree_v2", free) &&
           Find(library, "cuMemsetD32_v2", fill) && Find(library, "cuMemcpyHtoD_v2", copy_in) &&
           Find(library, "cuMemcpyDtoH_v2", copy_out) && Find(library, "cuLaunchKernel", launch);
  }

  int (*init)(unsigned);
  int (*error_string)(int, const char**);
  int (*driver_version)(int*);
  int (*device)(int*, int);
  int (*device_name)(char*, int, int);
  int (*device_attribute)(int*, int, int);
  int (*retain)(void**, int);
  int (*release)(int);
  int (*reset)(int);
  int (*set_current)(void*);
  int (*synchronize)();
  int (*load)(void**, const void*, unsigned, int*, void**);
  int (*unload)(void*);
  int (*function)(void**, void*, const char*);
  int (*allocate)(uint64_t*, size_t);
  int (*free)(uint64_t);
  int (*fill)(uint64_t, unsigned, size_t);
  int (*copy_in)(uint64_t, const void*, size_t);
  int (*copy_out)(void*, uint64_t, size_t);
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                void**, void**);
};

Gpu::Gpu() = default;

Gpu::~Gpu() {
  if (facts_.capability > 0) library_->release(device_);
}

std::string Gpu::ErrorText(const char* what, int code) const {
  const char* text = nullptr;
  library_->error_string(code, &text);
  return std::string(what) + ": " + (text == nullptr ? std::to_string(code) : text);
}

std::string Gpu::Open() {
  void* found = dlopen("libcuda.so.1", RTLD_NOW);
  if (found == nullptr) return "no CUDA driver: libcuda.so.1 cannot be loaded";
  library_ = std::make_unique<Library>();
  if (!library_->FindAll(found)) return "libcuda.so.1 lacks a function: want a driver of CUDA 12.8";
  if (const int code = library_->init(0); code != 0) return ErrorText("cuInit", code);
  if (const int code = library_->device(&device_, 0); code != 0) {
    return ErrorText("cuDeviceGet", code);
  }
  std::array<char, 256> name = {};
  int major = 0;
  int minor = 0;
  library_->device_name(name.data(), name.size(), device_);
  library_->device_attribute(&major, kCapabilityMajor, device_);
  library_->device_attribute(&minor, kCapabilityMinor, device_);
  library_->driver_version(&facts_.cuda_version);
  void* context = nullptr;
  if (const int code = library_->retain(&context, device_); code != 0) {
    return ErrorText("cuDevicePrimaryCtxRetain", code);
  }
  if (const int code = library_->set_current(context); code != 0) {
    return ErrorText("cuCtxSetCurrent", code);
  }
  facts_.name = name.data();
  facts_.driver = DriverVersion();
  facts_.capability = 10 * major + minor;
  return "";
}

std::string Gpu::Run(const GpuJob& job) {
  std::array<char, 4096> log = {};
  std::array<int, 2> options = {kErrorLog, kErrorLogBytes};
  std::array<void*, 2> values = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
  void* module = nullptr;
  const int code =
      library_->load(&module, job.ptx.c_str(), options.size(), options.data(), values.data());
  if (code != 0) return ErrorText("cuModuleLoadDataEx", code) + ": " + log.data();
  std::string error = RunModule(module, job);
  library_->unload(module);
  // A kernel that failed leaves the context unusable.
  if (!error.empty()) Reset();
  return error;
}

std::string Gpu::RunModule(void* module, const GpuJob& job) {
  void* function = nullptr;
  const int code = library_->function(&function, module, job.entry);
  if (code != 0) return ErrorText("cuModuleGetFunction", code);
  std::vector<uint64_t> memory(job.inputs.size() + 1);
  std::string error = Launch(function, job, memory);
  for (const uint64_t address : memory) {
    if (address != 0) library_->free(address);
  }
  return error;
}

std::string Gpu::Launch(void* function, const GpuJob& job, std::vector<uint64_t>& memory) {
  std::vector<void*> parameters;
  for (uint64_t& address : memory) {
    const size_t i = parameters.size();
    const size_t words = i < job.inputs.size() ? job.inputs[i]->size() : job.result.size();
    parameters.push_back(&address);
    if (words == 0) continue;
    int code = library_->allocate(&address, words * sizeof(uint32_t));
    if (code != 0) return ErrorText("cuMemAlloc", code);
    code = i < job.inputs.size()
               ? library_->copy_in(address, job.inputs[i]->data(), words * sizeof(uint32_t))
               : library_->fill(address, kPoison, words);
    if (code != 0) return ErrorText("copy of operands", code);
  }
  int code = library_->launch(function, job.blocks, 1, 1, job.threads, 1, 1, 0, nullptr,
                              parameters.data(), nullptr);
  if (code != 0) return ErrorText("cuLaunchKernel", code);
  code = library_->synchronize();
  if (code != 0) return ErrorText("kernel", code);
  code = library_->copy_out(job.result.data(), memory.back(), job.result.size() * sizeof(uint32_t));
  return code == 0 ? "" : ErrorText("copy of results", code);
}

void Gpu::Reset() {
  void* context = nullptr;
  library_->reset(device_);
  library_->retain(&context, device_);
  library_->set_current(context);
}

}  // namespace gemmd
