// Does the tasks of a step's list (layers/schedules/tasks.h), each for one micro-batch.
#include "core/kernels/check.h"
#include "core/trace/recorder.h"
#include "layers/model/model.h"

#include <utility>

namespace tsprun::detail {

/// Returns how many stages stand before a task's first (Rank::enter_stage) in an order in which a micro-batch's pass through the
/// stages of a pipeline is followed by its way back, and that by the next micro-batch.
std::uint64_t Model::stages_before(const ModelTask& task) const {
  const std::uint64_t of_each = 2 * options_.config.layers + 2;  // more than a rank has of one way
  const std::uint64_t way = 2 * task.micro_batch + (task.is_backward() ? 1 : 0);
  const std::uint64_t place = task.is_backward() ? stage_.count - 1 - stage_.number : stage_.number;
  const bool begins = task.piece == (task.is_backward() ? Piece::head : Piece::embedding);
  const std::uint64_t before = begins ? 0 : task.piece == Piece::layers ? 1 : 1 + 2 * stage_.layers;
  return (way * stage_.count + place) * of_each + before;
}

/// Does a task of a pass.
void Model::run(const ModelTask& task, Pass& pass) {
  rank_.skip_to_stage(stages_before(task));
  const TrafficCounters before = rank_.context().traffic();
  const bool backward = task.is_backward();
  if (task.kind == TaskKind::send) {
    send(pass, task);
  } else if (task.kind == TaskKind::receive) {
    receive(pass, task);
  } else {
    switch (task.piece) {
      case Piece::embedding: backward ? embed_backward(pass) : embed(pass); break;
      case Piece::layers: backward ? layers_backward(pass, task) : layers_forward(pass, task); break;
      case Piece::head: backward ? head_backward(pass) : head(pass); break;
    }
  }
  (backward ? backward_traffic_ : forward_traffic_) += rank_.context().traffic() - before;
}

// --- tables of which data ranks have parts -------------------------------------------------------------------------------------

// The embedding's rows are needed forward alone, and so are those of the table of layers' inputs, which is gathered after them,
// as it may be the larger of the two. The head's stay from its forward pass to its backward pass, which follows. The gradient of
// a tied table is complete with the embedding's.

void Model::use_embedding(Pass& pass) {
  if (!cuts_tables()) return;
  pass.tables->arrive(embedding_pack());
  pass.vocabulary->use(of_model({.embedding = pass.tables->values(embedding_pack())}));
}

void Model::use_head(Pass& pass) {
  if (!cuts_tables()) return;
  pass.tables->fetch(head_pack());  // if no layer did
  pass.tables->arrive(head_pack());
  // A rank with the whole vocabulary computes the gradient along with the loss.
  if (pass.keep && has_vocabulary()) return use_head_gradient(pass);
  pass.vocabulary->use(of_model({.head = pass.tables->values(head_pack())}));
}

void Model::use_head_gradient(Pass& pass) {
  if (!cuts_tables()) return;
  const MicroBatchGradient gradient = pass.tables->gradient(head_pack(), Category::communication, "gradient of the head");
  pass.vocabulary->use(of_model({.head = pass.tables->values(head_pack()), .head_gradient = gradient.rows()}));
}

void Model::use_embedding_gradient(Pass& pass) {
  if (!cuts_tables()) return;
  const MicroBatchGradient gradient =
      pass.tables->gradient(embedding_pack(), Category::communication, "gradient of the embedding");
  pass.vocabulary->use(of_model({.embedding_gradient = gradient.rows()}));
}

void Model::use_input_table(Pass& pass) {
  if (!cuts_tables()) return;
  pass.tables->fetch(inputs_pack());
  pass.tables->arrive(inputs_pack());
  pass.input_table->use({.embedding = pass.tables->values(inputs_pack())});
}

void Model::use_input_gradient(Pass& pass) {
  if (!cuts_tables()) return;
  const MicroBatchGradient gradient =
      pass.tables->gradient(inputs_pack(), Category::communication, "gradient of the table of layers' inputs");
  pass.input_table->use({.embedding_gradient = gradient.rows()});
}

// --- tasks ---------------------------------------------------------------------------------------------------------------------

/// Makes what a pass computes with, and the residual, whose elements nobody has written yet.
void Model::begin_forward(Pass& pass) {
  pass.tables = std::make_unique<OwnPacks>(rank_, table_ranks_, store_, pass.of);
  pass.tables->fetch(embedding_pack());
  pass.sublayers = strategy_->begin(
      {.store = store_, .tokens = *layout_, .visits = visits_, .micro_batch = pass.of, .documents = pass.documents.views()});
  pass.x = layout_->residual(rank_, pass.kept(), options_.dtype, options_.config.hidden, "embedded tokens");
  if (stage_.first() || stage_.last()) pass.vocabulary = vocabulary_of(pass.of);
}

/// Receives the residual from the stage before, or its gradient from the next.
void Model::receive(Pass& pass, const ModelTask& task) {
  if (task.gradient) {
    begin_backward(pass);
    boundaries_->receive(task, pass.d.view());
    return;
  }
  begin_forward(pass);
  if (stage_.last()) pass.vocabulary->begin(*layout_, pass.kept());
  boundaries_->receive(task, pass.x.view());
}

/// Sends the residual to the next stage, or its gradient to the one before.
void Model::send(Pass& pass, const ModelTask& task) {
  boundaries_->send(task, std::move(task.gradient ? pass.d : pass.x));
  if (task.gradient) end_backward(pass);
}

void Model::embed(Pass& pass) {
  rank_.enter_stage(PassPart::embedding, false, [] { return std::string("embedding, forward"); });
  begin_forward(pass);
  const Tensor x = pass.x->merged(0);
  use_embedding(pass);
  pass.vocabulary->embed(x, *layout_, pass.own.ids, pass.kept());
  pass.tables->used(embedding_pack());
  rows_given_.note(pass.of, stage_, pass.vocabulary->rows_given());
  complete_embedding(x, learned_rows(pass));
  if (has_layer_inputs()) {
    pass.input_table = input_table_of(pass.of);
    use_input_table(pass);
    OwnedTensor rows = input_rows(*pass.input_table, pass.own.ids, pass.kept());
    pass.tables->used(inputs_pack());
    pass.inputs.emplace(layer_inputs(std::move(rows), x, pass.kept(), pass.keep));
  }
  drop_embedding(pass, x);
  rank_.look(Watched::result, pass.x.view());
}

BlockPass Model::block_pass(Pass& pass) const {
  return {.sublayers = *pass.sublayers,
          .tokens = *layout_,
          .draws = pass.draws ? &*pass.draws : nullptr,
          .inputs = pass.inputs ? &*pass.inputs : nullptr};
}

void Model::layers_forward(Pass& pass, const ModelTask& task) {
  const BlockPass of = block_pass(pass);
  for (std::size_t layer = task.first_layer; layer < task.first_layer + task.layers; ++layer) {
    const TraceSpan span(rank_.trace(), "layer", static_cast<std::int64_t>(layer));
    if (layer + 1 == options_.config.layers) pass.tables->fetch(head_pack());
    BlockSaved nothing;
    take_lender(options_.config, pass.blocks, layer);
    pass.x = block_.forward(of, layer, std::move(pass.x), vectors(layer), pass.keep ? Keep::backward : Keep::nothing,
                            pass.blocks.empty() ? nothing : pass.blocks[layer]);
    if (!pass.keep) drop_lent(options_.config, pass.blocks, layer);
  }
}

/// Computes this rank's part of the sum of losses; the sum of all ranks' parts is the whole.
void Model::head(Pass& pass) {
  rank_.enter_stage(PassPart::head, false, [] { return std::string("head, forward"); });
  rank_.look(Watched::input, pass.x.view());
  OwnedTensor lse =
      rank_.tensor(pass.kept(), kernels::summed_in(options_.dtype), {layout_->held_rows()}, "log-sum-exp of the head");
  use_head(pass);
  if (options_.config.head_bias && pass.keep && pass.of.first()) rank_.compute().fill_zero(head_bias().gradient);
  pass.loss = pass.vocabulary->head(final_norm(pass.x).view(), lse, *layout_, pass.own.labels,
                                    pass.logits ? &pass.logits : nullptr, pass.keep ? std::optional(pass.weight) : std::nullopt);
  rank_.look(Watched::head_statistics, lse.view());
  if (pass.keep) {
    pass.lse = std::move(lse);
  } else {
    pass.tables->used(head_pack());
    pass.sublayers->end();
    pass.x.reset();
  }
}

/// Begins a backward pass, and makes the gradient of the residual, whose elements nobody has written yet.
void Model::begin_backward(Pass& pass) {
  ComputeStream& compute = rank_.compute();
  if (pass.of.first()) {
    compute.fill_zero(store_.gradients(replicated_pack()));
    if (options_.config.projection_vectors() > 0) {
      const std::size_t pack = bias_pack_number(store_);
      const std::size_t of_head = options_.config.head_bias ? 1 : 0;  // behind the others, and begun by head()
      compute.fill_zero(store_.gradients(pack, 0, store_.plan(pack).parts.size() - of_head));
    }
  }
  pass.sublayers->on_gradients([this](std::size_t pack) { sums_.post(pack, Purpose::gradients); });
  pass.sublayers->begin_backward();
  pass.d = layout_->residual(rank_, Category::workspace, kernels::summed_in(options_.dtype), options_.config.hidden,
                             "gradient of the residual");
}

/// Ends the backward pass, but for that of the last micro-batch, which reduce() ends, while its own sums are on their way.
void Model::end_backward(Pass& pass) {
  if (pass.vocabulary) pass.vocabulary->end();
  if (pass.of.last()) return;
  pass.sublayers->end();
  pass.tables->end();
}

void Model::head_backward(Pass& pass) {
  ComputeStream& compute = rank_.compute();
  rank_.enter_stage(PassPart::head, true, [] { return std::string("head, backward"); });
  begin_backward(pass);
  {
    use_head_gradient(pass);
    const OwnedTensor dx = pass.vocabulary->head_backward(final_norm(pass.x).view(), pass.lse, *layout_, pass.weight);
    norm_backward(compute, options_.config, pass.d->merged(0), dx, pass.x->merged(0), final_norm_weights(),
                  kernels::Write::replace, options_.config.logits_factor());
  }
  rank_.look(Watched::input_gradient, pass.d.view());
  pass.tables->used(head_pack());
  if (!options_.config.tied_embeddings) pass.tables->complete(head_pack(), Purpose::head);
  if (pass.of.last() && !options_.config.tied_embeddings) sums_.post(head_pack(), Purpose::head);
  pass.x.reset();
  pass.lse.reset();
}

void Model::layers_backward(Pass& pass, const ModelTask& task) {
  const BlockPass of = block_pass(pass);
  for (std::size_t layer = task.first_layer + task.layers; layer-- > task.first_layer;) {
    const TraceSpan span(rank_.trace(), "layer", static_cast<std::int64_t>(layer));
    block_.backward(of, layer, pass.d, vectors(layer), pass.blocks[layer]);
    pass.tables->settle();  // the head's gradient had a layer's time to leave
  }
}

void Model::embed_backward(Pass& pass) {
  rank_.enter_stage(PassPart::embedding, true, [] { return std::string("embedding, backward"); });
  const Tensor d = pass.d->merged(0);
  drop_embedding(pass, d);
  if (pass.inputs) {
    const ConstTensor of_rows = pass.inputs->finish(d, input_weights());
    use_input_gradient(pass);
    pass.input_table->embed_backward(of_rows);
    pass.tables->complete(inputs_pack(), Purpose::embedding);
    if (pass.of.last()) sums_.post(inputs_pack(), Purpose::embedding);
    pass.inputs.reset();
    pass.input_table.reset();
  }
  const auto add_to_positions = [&] {
    if (!options_.config.learned_positions) return;
    rank_.compute().scatter_add_rows(replicated(ParameterRole::positions, 0).second, d, learned_rows(pass));
  };
  const double factor = options_.config.embedding_factor();
  if (factor != 1) {
    add_to_positions();
    rank_.compute().multiply(d, d, factor);
  }
  use_embedding_gradient(pass);
  pass.vocabulary->embed_backward(d);
  pass.tables->complete(embedding_pack(), Purpose::embedding);
  if (pass.of.last() && !shares_embedding()) sums_.post(embedding_pack(), Purpose::embedding);
  if (factor == 1) add_to_positions();  // while the embedding's gradients travel
  end_backward(pass);
}

void Model::reduce(Pass& last) {
  const TrafficCounters before = rank_.context().traffic();
  if (boundaries_) boundaries_->finish();
  sum_replicated_gradients();
  last.sublayers->end();
  last.tables->end();
  if (shares_embedding()) sum_shared_embedding();
  for (std::size_t pack = 0; pack < replicated_pack(); ++pack) {
    if (!sums_.posted(pack)) sums_.post(pack, Purpose::gradients);
  }
  sums_.finish();
  count_backward(before);
  rank_.enter_stage(PassPart::update, true, [] { return std::string("update"); });
}

}  // namespace tsprun::detail
