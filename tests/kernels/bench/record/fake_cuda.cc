// SPDX-License-Identifier: Apache-2.0
//
// A driver without a GPU that claims to be an sm_80, for tests of how the recorder handles
// refusals. Its memory is the host's. It refuses modules with bf16; kernels with tf32 fail and
// leave the context unusable until it is reset; other kernels leave results unchanged.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

constexpr int kFailure = 700;
constexpr int kErrorLog = 5;

bool launch_fails = false;
bool is_unusable = false;

int Checked() { return is_unusable ? kFailure : 0; }

template <typename Target>
Target* Pointer(uint64_t address) {
  return reinterpret_cast<Target*>(address);
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return 0; }
int cuGetErrorString(int, const char** text) {
  *text = "it failed";
  return 0;
}
int cuDriverGetVersion(int* version) {
  *version = 12080;
  return 0;
}
int cuDeviceGet(int* device, int) {
  *device = 0;
  return 0;
}
int cuDeviceGetName(char* name, int size, int) {
  std::strncpy(name, "Fake", static_cast<size_t>(size));
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 8 : 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = nullptr;
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuDevicePrimaryCtxReset_v2(int) {
  is_unusable = false;
  return 0;
}
int cuCtxSetCurrent(void*) { return 0; }
int cuModuleLoadDataEx(void** module, const void* text, unsigned count, int* options,
                       void** values) {
  const std::string_view ptx(static_cast<const char*>(text));
  *module = nullptr;
  launch_fails = ptx.find("tf32") != std::string_view::npos;
  if (ptx.find("bf16") == std::string_view::npos) return Checked();
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == kErrorLog) std::strcpy(static_cast<char*>(values[i]), "line 1: no bf16");
  }
  return 218;
}
int cuModuleUnload(void*) { return Checked(); }
int cuModuleGetFunction(void** function, void*, const char* name) {
  *function = nullptr;
  return std::string_view(name) == "record_cases" ? Checked() : kFailure;
}
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  *address = reinterpret_cast<uint64_t>(std::malloc(bytes));
  return Checked();
}
int cuMemFree_v2(uint64_t address) {
  std::free(Pointer<void>(address));
  return Checked();
}
int cuMemsetD32_v2(uint64_t address, unsigned value, size_t words) {
  for (size_t i = 0; i < words; ++i) Pointer<unsigned>(address)[i] = value;
  return Checked();
}
int cuMemcpyHtoD_v2(uint64_t target, const void* source, size_t bytes) {
  std::memcpy(Pointer<void>(target), source, bytes);
  return Checked();
}
int cuMemcpyDtoH_v2(void* target, uint64_t source, size_t bytes) {
  std::memcpy(target, Pointer<void>(source), bytes);
  return Checked();
}
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void*, void**, void**) {
  return Checked();
}
int cuCtxSynchronize() {
  is_unusable |= launch_fails;
  return Checked();
}

}  // extern "C"
