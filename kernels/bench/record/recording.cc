// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/record/recording.h"

#include <fstream>
#include <span>

#include "kernels/bench/record/operand_words.h"
#include "kernels/bench/record/variants.h"
#include "kernels/mma/fragment.h"
#include "kernels/sim/unit.h"

namespace gemmd {
namespace {

using mma::Instruction;
using mma::Operand;

// FNV-1a.
uint64_t HashOf(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Fills every lane with valid metadata, also the lanes that the instruction ignores.
std::vector<uint32_t> AnyMetadata(const Instruction& instruction, RandomNumbers& random) {
  std::vector<uint32_t> lanes(static_cast<size_t>(instruction.lanes()));
  const bool keeps_one = mma::SparsityOf(instruction) == mma::Sparsity::kOneOfTwo;
  for (uint32_t& word : lanes) {
    for (int bit = 0; bit < 32; bit += 4) {
      uint32_t nibble = random.Flip() ? mma::kKeepsLower : mma::kKeepsUpper;
      if (!keeps_one) {
        const int64_t first = random.Between(0, 2);
        nibble = static_cast<uint32_t>(first | random.Between(first + 1, 3) << 2);
      }
      word |= nibble << bit;
    }
  }
  return lanes;
}

// The logical k of each element of A.
std::vector<int> LogicalKs(const Variant& variant, std::span<const uint32_t> metadata) {
  const Instruction& instruction = *variant.instruction;
  const int columns = instruction.a_columns();
  std::vector<int> a_k(static_cast<size_t>(instruction.m * columns));
  if (instruction.is_sparse()) {
    sim::DecodeMetadata(instruction, metadata, variant.selector, a_k);
  } else {
    for (size_t i = 0; i < a_k.size(); ++i) a_k[i] = static_cast<int>(i) % columns;
  }
  return a_k;
}

// Appends a matrix to `words`.
void Append(const Instruction& instruction, Operand operand, const std::vector<uint64_t>& matrix,
            std::vector<uint32_t>& words) {
  const size_t first = words.size();
  words.resize(first + WordsOf(instruction, operand));
  Pack(instruction, operand, matrix, std::span(words).subspan(first));
}

void AddCase(const Variant& variant, OperandFamily family, RandomNumbers& random,
             Recording& recording) {
  const Instruction& instruction = *variant.instruction;
  std::vector<uint32_t> metadata;
  if (instruction.is_sparse()) metadata = AnyMetadata(instruction, random);
  const std::vector<int> a_k = LogicalKs(variant, metadata);
  ProductOperands all;
  for (int product = 0; product < instruction.products(); ++product) {
    const ProductOperands one = MakeOperands(instruction, a_k, family, random);
    all.a.insert(all.a.end(), one.a.begin(), one.a.end());
    all.b.insert(all.b.end(), one.b.begin(), one.b.end());
    all.c.insert(all.c.end(), one.c.begin(), one.c.end());
  }
  Append(instruction, Operand::kA, all.a, recording.a);
  Append(instruction, Operand::kB, all.b, recording.b);
  Append(instruction, Operand::kC, all.c, recording.c);
  recording.metadata.insert(recording.metadata.end(), metadata.begin(), metadata.end());
  ++recording.cases;
}

}  // namespace

Recording MakeInputs(const Variant& variant, const std::vector<OperandFamily>& families,
                     size_t cases, uint64_t seed) {
  RandomNumbers random(seed ^ HashOf(NameOf(variant)));
  Recording recording;
  while (recording.cases < cases) {
    AddCase(variant, families[recording.cases % families.size()], random, recording);
  }
  return recording;
}

std::vector<uint32_t> Simulate(const Variant& variant, mma::Chip chip, const Recording& inputs) {
  const Instruction& instruction = *variant.instruction;
  sim::MatrixUnit unit(instruction, chip);
  std::vector<uint64_t> result(
      static_cast<size_t>(instruction.m * instruction.n * instruction.products()));
  std::vector<uint32_t> d;
  for (size_t i = 0; i < inputs.cases; ++i) {
    const auto words_of = [&](const std::vector<uint32_t>& words) {
      const size_t count = words.size() / inputs.cases;
      return std::span(words).subspan(i * count, count);
    };
    const std::vector<uint64_t> a = Unpack(instruction, Operand::kA, words_of(inputs.a));
    const std::vector<uint64_t> b = Unpack(instruction, Operand::kB, words_of(inputs.b));
    const std::vector<uint64_t> c = Unpack(instruction, Operand::kC, words_of(inputs.c));
    std::vector<int> a_k;
    if (instruction.is_sparse()) a_k = LogicalKs(variant, words_of(inputs.metadata));
    unit.Multiply({.a = a, .a_k = a_k, .b = b, .c = c, .a_factors = {}, .b_factors = {}}, result);
    Append(instruction, Operand::kD, result, d);
  }
  return d;
}

bool WriteFile(const std::string& path, const Recording& recording) {
  std::ofstream file(path, std::ios::binary);
  for (const std::vector<uint32_t>* words :
       {&recording.a, &recording.b, &recording.c, &recording.metadata, &recording.d}) {
    file.write(reinterpret_cast<const char*>(words->data()),
               static_cast<std::streamsize>(words->size() * sizeof(uint32_t)));
  }
  file.close();
  return file.good();
}

}  // namespace gemmd
