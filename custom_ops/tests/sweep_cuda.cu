// The correctness sweep on a CUDA device. The argument is the stride (see sweep).
#include <cuda_runtime.h>

#include "scalecom/scalecom_cuda.h"
#include "tests/sweep.h"

namespace {

using test::TensorList;

void must(cudaError_t error) { test::require(error == cudaSuccess, cudaGetErrorString(error)); }

// Device memory that lasts for the program; grows to the largest request.
struct Arena {
  char* data = nullptr;
  size_t size = 0;
  char* get(size_t bytes) {
    if (bytes > size) {
      must(cudaFree(data));
      must(cudaMalloc(&data, bytes));
      size = bytes;
    }
    return data;
  }
};

// A list on the device: every array 256-byte aligned, then as far off 16 bytes as on the
// host. Between arrays lie guards, which nobody may write.
class DeviceTensorList {
 public:
  DeviceTensorList(TensorList& host, Arena& arena) : host_(host), tensors(host.tensors) {
    size_t at = 0;
    for (const test::Array& a : host.arrays) {
      at += reinterpret_cast<uintptr_t>(a.get()) % 16;
      places_.push_back(at);
      at = (at + static_cast<size_t>(a.bytes()) + 511) / 256 * 256;
    }
    staging_.assign(at, kGuard);
    data_ = arena.get(at);
    for (size_t i = 0; i < places_.size(); ++i) {
      memcpy(&staging_[places_[i]], host.arrays[i].get(),
             static_cast<size_t>(host.arrays[i].bytes()));
    }
    must(cudaMemcpy(data_, staging_.data(), at, cudaMemcpyHostToDevice));
    for (size_t i = 0; i < tensors.size(); ++i) {
      const size_t* place = &places_[TensorList::kPointers * i];
      tensors[i].gradient = data_ + place[0];
      tensors[i].residual = reinterpret_cast<float*>(data_ + place[1]);
      tensors[i].compensated = reinterpret_cast<float*>(data_ + place[host.in_place ? 0 : 2]);
      tensors[i].offsets = data_ + place[3];
      tensors[i].values = data_ + place[4];
      tensors[i].reduced = data_ + place[5];
      tensors[i].output = data_ + place[6];
    }
  }
  void download() {
    must(cudaMemcpy(staging_.data(), data_, staging_.size(), cudaMemcpyDeviceToHost));
    size_t end = 0;
    for (size_t i = 0; i < places_.size(); ++i) {
      const size_t bytes = static_cast<size_t>(host_.arrays[i].bytes());
      require_guards(end, places_[i]);
      memcpy(host_.arrays[i].get(), &staging_[places_[i]], bytes);
      end = places_[i] + bytes;
    }
    require_guards(end, staging_.size());
  }

 private:
  static constexpr char kGuard = 0x5a;
  void require_guards(size_t begin, size_t end) const {
    test::require(std::all_of(staging_.begin() + static_cast<int64_t>(begin),
                              staging_.begin() + static_cast<int64_t>(end),
                              [](char byte) { return byte == kGuard; }),
                  "written outside of an array");
  }

  TensorList& host_;
  std::vector<size_t> places_;
  std::vector<char> staging_;
  char* data_;

 public:
  std::vector<scalecom_tensor> tensors;
};

Arena list_arena;
Arena workspace_arena;
uint32_t* device_flag;
float* device_value;

// Runs function(device tensors) there and brings the list and the flag back.
template <typename Function>
int32_t run(TensorList& b, uint32_t* flag, const Function& function) {
  DeviceTensorList device(b, list_arena);
  if (flag != nullptr) must(cudaMemcpy(device_flag, flag, 4, cudaMemcpyHostToDevice));
  const int32_t status = function(device.tensors.data());
  must(cudaDeviceSynchronize());
  device.download();
  if (flag != nullptr) must(cudaMemcpy(flag, device_flag, 4, cudaMemcpyDeviceToHost));
  return status;
}

test::Backend backend() {
  test::Backend b;
  b.select = [](TensorList& k, int32_t selection, uint32_t* flag) {
    return run(k, flag, [&](const scalecom_tensor* t) {
      const int64_t bytes = scalecom_offsets_workspace_cuda(t, k.count(), selection);
      void* workspace = workspace_arena.get(static_cast<size_t>(bytes));
      must(cudaMemset(workspace, 0xa5, static_cast<size_t>(bytes)));
      return scalecom_offsets_select_cuda(t, k.count(), selection, k.gradient_type, device_flag,
                                          workspace, bytes, nullptr);
    });
  };
  b.compensate = [](TensorList& k, uint32_t* flag) {
    return run(k, flag, [&](const scalecom_tensor* t) {
      return scalecom_gradients_compensate_cuda(t, k.count(), k.gradient_type, device_flag,
                                                nullptr);
    });
  };
  b.gather = [](TensorList& k, float limit) {
    return run(k, nullptr, [&](const scalecom_tensor* t) {
      return scalecom_values_gather_cuda(t, k.count(), k.wire_type, limit, nullptr);
    });
  };
  b.flag = [](uint32_t nonfinite, int32_t wire_type, void* value) {
    must(cudaMemcpy(device_flag, &nonfinite, 4, cudaMemcpyHostToDevice));
    const int32_t status = scalecom_flag_write_cuda(device_flag, wire_type, device_value, nullptr);
    must(cudaMemcpy(value, device_value, 4, cudaMemcpyDeviceToHost));
    return status;
  };
  b.filter = [](TensorList& k, float beta, bool finite) {
    uint32_t flag = finite;  // whose first byte is read
    return run(k, &flag, [&](const scalecom_tensor* t) {
      return scalecom_residuals_filter_cuda(t, k.count(), beta,
                                            reinterpret_cast<const uint8_t*>(device_flag), nullptr);
    });
  };
  b.scatter = [](TensorList& k) {
    return run(k, nullptr, [&](const scalecom_tensor* t) {
      return scalecom_outputs_scatter_cuda(t, k.count(), k.gradient_type, k.wire_type, nullptr);
    });
  };
  b.descend = [](test::SlicesList& k, float learning_rate) {
    std::vector<scalecom_slices> slices = k.list();
    const auto upload = [](const void* from, size_t bytes) {
      char* to = nullptr;
      must(cudaMalloc(&to, std::max<size_t>(bytes, 1)));
      must(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
      return to;
    };
    for (size_t i = 0; i < slices.size(); ++i) {
      scalecom_slices& s = slices[i];
      s.variable = reinterpret_cast<float*>(upload(s.variable, k.variables[i].size() * 4));
      s.indices = reinterpret_cast<int64_t*>(upload(s.indices, k.indices[i].size() * 8));
      s.values = reinterpret_cast<float*>(upload(s.values, k.values[i].size() * 4));
    }
    const char* rate = upload(&learning_rate, 4);
    const int32_t status =
        scalecom_variables_descend_cuda(slices.data(), static_cast<int64_t>(slices.size()),
                                        reinterpret_cast<const float*>(rate), nullptr);
    for (size_t i = 0; i < slices.size(); ++i) {
      must(cudaMemcpy(k.variables[i].data(), slices[i].variable, k.variables[i].size() * 4,
                      cudaMemcpyDeviceToHost));
      must(cudaFree(slices[i].variable));
      must(cudaFree(const_cast<int64_t*>(slices[i].indices)));
      must(cudaFree(const_cast<float*>(slices[i].values)));
    }
    must(cudaFree(const_cast<char*>(rate)));
    return status;
  };
  return b;
}

#if !defined(__CUDACC__)
// A launch that fails says so in CUDA's words, and CUDA's last error is then no longer its own.
void check_failed_launch() {
  emulator::launches_fail() = true;
  uint32_t flag = 0;
  double value = 0;
  const int32_t status = scalecom_flag_write_cuda(&flag, SCALECOM_FLOAT32, &value, nullptr);
  emulator::launches_fail() = false;
  test::require(status == SCALECOM_DEVICE_ERROR + cudaErrorLaunchOutOfResources, "failed launch");
  test::require(strcmp(scalecom_status_text_cuda(status),
                       cudaGetErrorString(cudaErrorLaunchOutOfResources)) == 0,
                "words of a failed launch");
  test::require(cudaGetLastError() == cudaSuccess, "a failed launch is cleared");
}
#endif

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    printf("skipped: no CUDA device\n");
    return 77;
  }
#if !defined(__CUDACC__)
  check_failed_launch();
#endif
  int32_t binary = 0;
  int32_t ptx = 0;
  test::require(scalecom_kernels_load_cuda(&binary, &ptx) == SCALECOM_OK, "kernels load");
  must(cudaMalloc(&device_flag, 4));
  must(cudaMalloc(&device_value, 4));
  test::sweep({backend()}, argc > 1 ? strtoull(argv[1], nullptr, 10) : 1);
  return 0;
}
