#include "model/quantizer/gptq_solver.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace quire {
namespace {

using Doubles = std::vector<double>;

struct Problem {
  size_t out, in;
  std::vector<float> weight;  // [out, in]
  std::vector<float> inputs;  // [tokens, in]
  size_t tokens;
  Doubles hessian;  // mean of x x^T, [in, in]
};

// Correlated inputs with unequal channels: where GPTQ has something to win.
Problem MakeProblem(size_t out, size_t in, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Problem p = {.out = out, .in = in, .tokens = 4 * in};
  p.weight.resize(out * in);
  for (float& w : p.weight) w = 0.1f * normal(random);
  p.inputs.resize(p.tokens * in);
  for (size_t t = 0; t < p.tokens; ++t) {
    const float common = normal(random);
    for (size_t k = 0; k < in; ++k)
      p.inputs[t * in + k] =
          (0.7f * common + normal(random)) *
          (0.2f + static_cast<float>(k * 7 % in) / static_cast<float>(in));
  }
  p.hessian.resize(in * in);
  for (size_t t = 0; t < p.tokens; ++t)
    for (size_t i = 0; i < in; ++i)
      for (size_t j = 0; j < in; ++j)
        p.hessian[i * in + j] += double{p.inputs[t * in + i]} *
                                 p.inputs[t * in + j] /
                                 static_cast<double>(p.tokens);
  return p;
}

// Gauss-Jordan; fine for the sizes here.
Doubles Inverse(Doubles a, size_t n) {
  Doubles inverse(n * n);
  for (size_t i = 0; i < n; ++i) inverse[i * n + i] = 1;
  for (size_t i = 0; i < n; ++i) {
    const double pivot = a[i * n + i];
    for (size_t j = 0; j < n; ++j) {
      a[i * n + j] /= pivot;
      inverse[i * n + j] /= pivot;
    }
    for (size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = a[r * n + i];
      for (size_t j = 0; j < n; ++j) {
        a[r * n + j] -= factor * a[i * n + j];
        inverse[r * n + j] -= factor * inverse[i * n + j];
      }
    }
  }
  return inverse;
}

Doubles Damped(const Problem& p, double damping) {
  Doubles h = p.hessian;
  double mean = 0;
  for (size_t i = 0; i < p.in; ++i)
    mean += h[i * p.in + i] / static_cast<double>(p.in);
  for (size_t i = 0; i < p.in; ++i) h[i * p.in + i] += damping * mean;
  return h;
}

// Optimal brain quantisation with a fixed order, as GPTQ's paper derives it:
// after each input is rounded, the exact optimal update of the rest, and the
// input is eliminated from the inverse Hessian. No Cholesky factor, no blocks.
std::vector<uint8_t> NaiveCodes(const Problem& p, const Doubles& hessian,
                                const std::vector<uint32_t>& order,
                                const SolverOptions& options) {
  std::vector<uint8_t> codes(p.in * p.out);
  const uint32_t max_code = (1u << options.grid.bits) - 1;
  for (size_t n = 0; n < p.out; ++n) {
    Doubles w(p.weight.begin() + static_cast<ptrdiff_t>(n * p.in),
              p.weight.begin() + static_cast<ptrdiff_t>((n + 1) * p.in));
    Doubles inverse = Inverse(hessian, p.in);
    std::vector<QuantizationGrid> static_grids;
    for (size_t from = 0; from < p.in; from += options.group_size) {
      std::vector<float> group;
      for (size_t k = from; k < std::min(from + options.group_size, p.in); ++k)
        group.push_back(static_cast<float>(w[k]));
      static_grids.push_back(FitGrid(group, options.grid));
    }
    QuantizationGrid grid;
    for (size_t i = 0; i < p.in; ++i) {
      const size_t k = order[i];
      if (options.static_groups) {
        grid = static_grids[k / options.group_size];
      } else if (i % options.group_size == 0) {
        std::vector<float> group;
        for (size_t j = i; j < std::min(i + options.group_size, p.in); ++j)
          group.push_back(static_cast<float>(w[order[j]]));
        grid = FitGrid(group, options.grid);
      }
      const uint32_t code = grid.Code(static_cast<float>(w[k]), max_code);
      codes[k * p.out + n] = static_cast<uint8_t>(code);
      const double error = (w[k] - grid.Value(code)) / inverse[k * p.in + k];
      for (size_t j = 0; j < p.in; ++j) w[j] -= error * inverse[k * p.in + j];
      const double pivot = inverse[k * p.in + k];
      Doubles row(p.in);
      for (size_t j = 0; j < p.in; ++j) row[j] = inverse[k * p.in + j];
      for (size_t a = 0; a < p.in; ++a) {
        const double factor = inverse[a * p.in + k] / pivot;
        for (size_t b = 0; b < p.in; ++b)
          inverse[a * p.in + b] -= factor * row[b];
      }
    }
  }
  return codes;
}

// Squared error of the layer's output over the calibration inputs.
double OutputError(const Problem& p, const QuantizedLinear& q) {
  double sum = 0;
  for (size_t t = 0; t < p.tokens; ++t) {
    for (size_t n = 0; n < p.out; ++n) {
      double error = 0;
      for (size_t k = 0; k < p.in; ++k)
        error += double{p.inputs[t * p.in + k]} *
                 (double{p.weight[n * p.in + k]} - q.Value(k, n));
      sum += error * error;
    }
  }
  return sum;
}

struct Case {
  bool act_order;
  bool static_groups;
  size_t in, group_size;
};

class GptqSolverTest : public testing::TestWithParam<Case> {};

TEST_P(GptqSolverTest, AgreesWithTheNaiveAlgorithm) {
  const Case c = GetParam();
  ThreadPool pool(2);
  const Problem p = MakeProblem(37, c.in, 3);
  const SolverOptions options = {.grid = {.bits = 4},
                                 .group_size = c.group_size,
                                 .static_groups = c.static_groups};
  const double damping = 0.01;
  const auto factor =
      FactorHessian(p.hessian, p.in, damping, c.act_order, "test");
  ASSERT_TRUE(factor.ok()) << factor.status();
  const QuantizedLinear q =
      SolveGptq(p.weight, p.out, p.in, *factor, options, &pool);
  const std::vector<uint8_t> expected =
      NaiveCodes(p, Damped(p, damping), factor->order, options);
  // Rounding in float32 may tip a weight that lies between two codes, and those
  // that follow in its row.
  size_t different = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    different += q.codes[i] != expected[i] ? 1 : 0;
  EXPECT_LE(different, expected.size() / 50);
  for (size_t i = 0; i < p.in; ++i) {
    const uint32_t k = factor->order[i];
    EXPECT_EQ(q.group_of_input[k], (c.static_groups ? k : i) / c.group_size);
  }
}

TEST_P(GptqSolverTest, BeatsRoundToNearest) {
  const Case c = GetParam();
  ThreadPool pool(2);
  const Problem p = MakeProblem(64, c.in, 4);
  for (const int bits : {2, 3, 4}) {
    const SolverOptions options = {.grid = {.bits = bits},
                                   .group_size = c.group_size,
                                   .static_groups = c.static_groups};
    const auto factor =
        FactorHessian(p.hessian, p.in, 0.01, c.act_order, "test");
    ASSERT_TRUE(factor.ok());
    const double gptq = OutputError(
        p, SolveGptq(p.weight, p.out, p.in, *factor, options, &pool));
    const double nearest =
        OutputError(p, RoundToNearest(p.weight, p.out, p.in, options, &pool));
    EXPECT_LT(gptq, 0.8 * nearest) << bits << " bits";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Orders, GptqSolverTest,
    testing::Values(Case{false, false, 24, 8}, Case{true, false, 24, 8},
                    Case{true, true, 24, 8}, Case{false, false, 20, 8},
                    // Longer than a block of the solver.
                    Case{true, false, 150, 32}, Case{false, false, 24, 24}));

TEST(FactorHessianTest, TheFactorIsThatOfTheInverse) {
  for (const bool act_order : {false, true}) {
    const Problem p = MakeProblem(1, 40, 5);
    const auto factor = FactorHessian(p.hessian, p.in, 0.05, act_order, "test");
    ASSERT_TRUE(factor.ok());
    EXPECT_EQ(factor->damping, 0.05);
    // H U^T U = 1 in the order of treatment.
    const Doubles h = Damped(p, 0.05);
    for (size_t i = 0; i < p.in; ++i) {
      for (size_t j = 0; j < p.in; ++j) {
        double sum = 0;
        for (size_t a = 0; a < p.in; ++a) {
          double inverse = 0;
          for (size_t b = 0; b < p.in; ++b)
            inverse += double{factor->upper[b * p.in + a]} *
                       factor->upper[b * p.in + j];
          sum += h[factor->order[i] * p.in + factor->order[a]] * inverse;
        }
        EXPECT_NEAR(sum, i == j ? 1 : 0, 1e-4);
      }
      for (size_t j = 0; j < i; ++j)
        EXPECT_EQ(factor->upper[i * p.in + j], 0.0f);
      if (act_order && i > 0) {
        EXPECT_GE(h[factor->order[i - 1] * (p.in + 1)],
                  h[factor->order[i] * (p.in + 1)]);
      }
    }
  }
}

TEST(FactorHessianTest, InputsThatAreAlwaysZeroAreDead) {
  Problem p = MakeProblem(3, 16, 6);
  for (size_t j = 0; j < p.in; ++j)
    p.hessian[5 * p.in + j] = p.hessian[j * p.in + 5] = 0;
  const auto factor = FactorHessian(p.hessian, p.in, 0.01, false, "test");
  ASSERT_TRUE(factor.ok());
  for (size_t k = 0; k < p.in; ++k) EXPECT_EQ(factor->dead[k], k == 5);
  ThreadPool pool(1);
  const QuantizedLinear q =
      SolveGptq(p.weight, p.out, p.in, *factor, {.group_size = 16}, &pool);
  for (size_t n = 0; n < p.out; ++n) EXPECT_EQ(q.Value(5, n), 0.0f);
}

TEST(FactorHessianTest, ASingularHessianGetsTheDampingItNeeds) {
  // One direction only: rank 1.
  const size_t n = 12;
  Doubles h(n * n, 1.0);
  const auto factor = FactorHessian(h, n, 1e-17, false, "test");
  ASSERT_TRUE(factor.ok()) << factor.status();
  EXPECT_GT(factor->damping, 1e-17);
  // Of this very matrix, which the attempts before have overwritten.
  const auto at_once = FactorHessian(h, n, factor->damping, false, "test");
  ASSERT_TRUE(at_once.ok());
  EXPECT_EQ(factor->upper, at_once->upper);
}

TEST(FactorHessianTest, NonFiniteInputsAreAnErrorThatNamesTheModule) {
  const auto factor =
      FactorHessian({NAN, 0, 0, 1}, 2, 0.01, false, "model.layers.3.");
  ASSERT_FALSE(factor.ok());
  EXPECT_NE(factor.status().message().find("model.layers.3."),
            std::string_view::npos);
}

TEST(HessianAccumulatorTest, SumsOverChunksOfAnySize) {
  const size_t features = 19;
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  std::vector<float> inputs(700 * features);
  for (float& x : inputs) x = normal(random);
  ThreadPool pool(2);
  HessianAccumulator accumulator(features);
  HessianScratch scratch;
  accumulator.Add(inputs.data(), 3, &scratch, &pool);
  accumulator.Add(inputs.data() + 3 * features, 600, &scratch, &pool);
  accumulator.Add(inputs.data() + 603 * features, 97, &scratch, &pool);
  EXPECT_EQ(accumulator.tokens(), 700u);
  const Doubles mean = std::move(accumulator).TakeMean();
  for (size_t i = 0; i < features; ++i) {
    for (size_t j = 0; j < features; ++j) {
      double expected = 0;
      for (size_t t = 0; t < 700; ++t)
        expected +=
            double{inputs[t * features + i]} * inputs[t * features + j] / 700;
      EXPECT_NEAR(mean[i * features + j], expected, 1e-5);
    }
  }
}

}  // namespace
}  // namespace quire
