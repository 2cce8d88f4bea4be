// all_reduce of sparse tensors: every rank gets the elements of all, and adds them up in the order of ranks, so that all have the
// same bits. What each rank has to say of its tensor goes ahead: the others must know how much it sends.
#include "process_group.h"
#include "tensors.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::torch_binding {

namespace {

constexpr const char* kCall = "all_reduce";
constexpr std::int64_t kMostDimensions = 64;  // torch's own limit for what iterates over tensors

/// A rank's tensor in 4 + kMostDimensions numbers: element type, elements, dimensions of the indices, dimensions, sizes.
std::vector<std::int64_t> described(const at::Tensor& tensor, Reduction reduction) {
  std::vector<std::int64_t> words = {static_cast<std::int64_t>(tensor.scalar_type()), tensor._nnz(), tensor.sparse_dim(),
                                     tensor.dim()};
  words.insert(words.end(), tensor.sizes().begin(), tensor.sizes().end());
  words.resize(4 + kMostDimensions);
  words.push_back(static_cast<std::int64_t>(reduction));
  return words;
}

std::string in_words(const std::vector<std::int64_t>& words) {
  const at::IntArrayRef sizes(words.data() + 4, static_cast<std::size_t>(words[3]));
  return c10::str(static_cast<at::ScalarType>(words[0]), " of sizes ", sizes, ", indices of ", words[2],
                  " dimensions, for reduction ", words.back());
}

at::Tensor bytes(const at::Tensor& tensor) { return plain(tensor).reshape({-1}).view(at::kByte); }

/// Takes tensors one by one out of the bytes in which they came.
class Unpacking {
 public:
  explicit Unpacking(at::Tensor from) : from_(std::move(from)) {}
  at::Tensor next(at::ScalarType type, at::IntArrayRef sizes) {
    std::int64_t length = static_cast<std::int64_t>(c10::elementSize(type));
    for (const std::int64_t size : sizes) length *= size;
    const at::Tensor part = from_.narrow(0, at_, length).clone();  // aligned
    at_ += length;
    return part.view(type).view(sizes);
  }

 private:
  at::Tensor from_;
  std::int64_t at_ = 0;
};

}  // namespace

WorkPtr TsprunGroup::allreduce_of_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const at::NoGradGuard without_history;
  check_place(kCall, tensor);
  const Reduction reduction = reduction_of(kCall, op, tensor);
  TORCH_CHECK(reduction == Reduction::sum || reduction == Reduction::average, kCall,
              ": sparse tensors are reduced by SUM and AVG alone, not by ", std::string(name(reduction)),
              "; .to_dense() makes one that can be");
  TORCH_CHECK(tensor.dim() <= kMostDimensions, kCall, ": a sparse tensor has at most ", kMostDimensions,
              " dimensions here, this one has ", tensor.dim());
  const at::Tensor own = tensor.detach().coalesce();
  const std::vector<std::int64_t> mine = described(own, reduction);
  const at::Tensor said = at::tensor(mine, at::kLong);
  const at::Tensor heard = at::empty({getSize(), said.numel()}, at::kLong);
  start({"all_reduce_sizes", c10d::OpType::ALLGATHER, {said, heard}, {heard}, {}, nullptr, true}, {},
        [=, this](Communicator& group) { return group.post_all_gather(view(said), view(heard), call_options()); })
      ->wait(kNoTimeout);

  std::vector<std::int64_t> elements;
  std::vector<std::size_t> counts;
  const std::int64_t sparse = own.sparse_dim();
  const std::vector<std::int64_t> of_one(own.sizes().begin() + sparse, own.sizes().end());
  std::int64_t bytes_of_one = sparse * static_cast<std::int64_t>(sizeof(std::int64_t));
  {
    std::int64_t value = static_cast<std::int64_t>(own.element_size());
    for (const std::int64_t size : of_one) value *= size;
    bytes_of_one += value;
  }
  for (int rank = 0; rank < getSize(); ++rank) {
    const auto* const first = heard[rank].data_ptr<std::int64_t>();
    std::vector<std::int64_t> theirs(first, first + said.numel());
    elements.push_back(theirs[1]);
    counts.push_back(static_cast<std::size_t>(theirs[1] * bytes_of_one));
    theirs[1] = mine[1];
    TORCH_CHECK(theirs == mine, kCall, ": Sparse dimensions do not match: rank ", rank, " has ", in_words(theirs), "; rank ",
                getRank(), " has ", in_words(mine));
  }
  const at::Tensor sent = at::cat({bytes(own.indices()), bytes(own.values())});
  std::int64_t in_all = 0;
  for (const std::size_t count : counts) in_all += static_cast<std::int64_t>(count);
  const at::Tensor all = at::empty({in_all}, sent.options());

  const auto add_up = [=, sizes = own.sizes().vec()] {
    const at::ScalarType type = tensor.scalar_type();
    const at::ScalarType exact = type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
    Unpacking unpacking(all);
    at::Tensor sum;
    for (const std::int64_t count : elements) {
      std::vector<std::int64_t> of_values = {count};
      of_values.insert(of_values.end(), of_one.begin(), of_one.end());
      const at::Tensor indices = unpacking.next(at::kLong, {sparse, count});
      const at::Tensor values = unpacking.next(type, of_values).to(exact);
      const at::Tensor each = at::sparse_coo_tensor(indices, values, sizes)._coalesced_(true);
      sum = sum.defined() ? sum.add(each) : each;
    }
    sum = sum.coalesce();
    at::Tensor values = sum.values();
    if (reduction == Reduction::average) values = values / static_cast<std::int64_t>(elements.size());
    tensor.copy_(at::sparse_coo_tensor(sum.indices(), values.to(type), sizes)._coalesced_(true));
  };
  return start({kCall, c10d::OpType::ALLREDUCE, {sent, all}, {tensor}, {own.indices(), own.values()}}, add_up,
               [=, this](Communicator& group) {
                 if (all_equal(counts)) return group.post_all_gather(view(sent), view(all), call_options());
                 return group.post_all_gather_v(view(sent), view(all), counts, call_options());
               });
}

}  // namespace tsprun::torch_binding
