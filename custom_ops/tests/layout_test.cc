// Index arithmetic past 2^31, and sizes that a test cannot fill with data.
#include "core/layout.h"

#include "core/cpu/number.h"
#include "tests/sweep.h"

namespace {

using test::require;

scalecom_tensor tensor(int64_t elements, int64_t chunk_size, int64_t keep, int64_t tail) {
  scalecom_tensor t = {};
  t.elements = elements;
  t.chunk_size = chunk_size;
  t.chunk_keep = keep;
  t.tail_keep = tail;
  t.offset_bytes = scalecom_offset_bytes(chunk_size);
  return t;
}

void beyond_int32() {
  const int64_t n = 5'000'000'007;  // 50,000,000 chunks of 100 and a tail of 7
  const scalecom_tensor t = tensor(n, 100, 3, 1);
  require(scalecom::chunk_count(t) == 50'000'001, "chunk_count");
  require(scalecom::chunk_length(t, 49'999'999) == 100, "last full chunk");
  require(scalecom::chunk_length(t, 50'000'000) == 7, "tail length");
  require(scalecom::chunk_kept(t, 49'999'999) == 3, "full kept");
  require(scalecom::chunk_kept(t, 50'000'000) == 1, "tail kept");
  require(scalecom::kept_count(t) == 150'000'001, "kept_count");
  require(scalecom_tensor_kept(&t) == 150'000'001, "scalecom_tensor_kept");

  // One chunk of 2^32 elements: the largest that 4-byte offsets address.
  scalecom_tensor whole = tensor(int64_t{1} << 32, int64_t{1} << 32, 40, 0);
  require(scalecom_tensor_kept(&whole) == 40, "2^32 kept");
  uint32_t offsets[40];
  for (uint32_t i = 0; i < 40; ++i) offsets[i] = 100'000'000u * (i + 3);
  whole.offsets = offsets;
  require(scalecom::entry_element(whole, 0, 39) == 4'200'000'000, "element past 2^31");
  const scalecom::EntryRange range =
      scalecom::chunk_entries(whole, 0, 2'200'000'000, 2'300'000'001);
  require(range.first == 19 && range.last == 21, "entries of a block past 2^31");
  whole = tensor((int64_t{1} << 32) + 1, (int64_t{1} << 32) + 1, 1, 0);
  require(scalecom_tensor_kept(&whole) == -1, "chunk above 2^32 is refused");

  // The widest layouts: nothing overflows.
  const scalecom_tensor vast = tensor(INT64_MAX / 8, 256, 256, 0);
  require(scalecom::chunk_count(vast) == INT64_MAX / 8 / 256 + 1, "vast chunk_count");
}

void owners() {
  const int64_t first[] = {0, 0, 3'000'000'000, 3'000'000'000, 3'000'000'005};
  require(scalecom::unit_owner(first, 4, 0) == 1, "empty tensors own nothing");
  require(scalecom::unit_owner(first, 4, 2'999'999'999) == 1, "last of the second");
  require(scalecom::unit_owner(first, 4, 3'000'000'000) == 3, "first of the fourth");
  require(scalecom::unit_owner(first, 4, 3'000'000'004) == 3, "last of all");
}

void offset_widths() {
  require(scalecom_offset_bytes(1) == 1 && scalecom_offset_bytes(256) == 1, "1 byte");
  require(scalecom_offset_bytes(257) == 2 && scalecom_offset_bytes(65536) == 2, "2 bytes");
  require(scalecom_offset_bytes(65537) == 4 && scalecom_offset_bytes(int64_t{1} << 32) == 4,
          "4 bytes");
  require(scalecom_offset_bytes(0) == 0 && scalecom_offset_bytes((int64_t{1} << 32) + 1) == 0,
          "none");
}

// Every conversion of the core against the definition, each 16-bit number and its neighbours.
void conversions() {
  const auto check = [](test::SmallFloat format, int32_t type, uint16_t bits) {
    const double value = test::small_float_decode(format, bits);
    const float widened = scalecom::wire_load(&bits, type, 0);
    require(isnan(value) ? isnan(widened) : double{widened} == value, "widening");
    const float exact = static_cast<float>(value);
    for (float x : {exact, nextafterf(exact, INFINITY), nextafterf(exact, -INFINITY),
                    exact * 1.0004883f, exact * 1.00390625f}) {
      uint16_t narrowed;
      scalecom::wire_store(&narrowed, type, 0, x);
      const uint16_t want = test::small_float_encode(format, x);
      require(isnan(x) || narrowed == want, "narrowing " + std::to_string(x));
    }
  };
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    check(test::kFloat16, SCALECOM_FLOAT16, static_cast<uint16_t>(bits));
    check(test::kBfloat16, SCALECOM_BFLOAT16, static_cast<uint16_t>(bits));
  }
}

}  // namespace

int main() {
  beyond_int32();
  owners();
  offset_widths();
  conversions();
  printf("index arithmetic and conversions hold\n");
  return 0;
}
