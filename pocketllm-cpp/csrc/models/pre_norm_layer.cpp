#include "models/pre_norm_layer.h"

namespace pocket {

void PreNormLayer::run(LayerCall& call, float* x) {
  const std::int64_t size = input_norm_.size;
  Workspace& work = call.work;
  float* normed = call.room(work.normed, call.num_rows * size);
  input_norm_.apply(call.context, call.num_rows, x, normed);
  work.normed_rows.assign(call.context, normed, call.num_rows, size, size, call.activation);
  mixer_->mix(call, work.normed_rows);
  if (call.num_kept == 0) return;
  call.keep_rows(x, size, size);
  mixer_->project(call, x, Store::kAdd);
  feed_forward_norm_.apply(call.context, call.num_kept, x, normed);
  work.normed_rows.assign(call.context, normed, call.num_kept, size, size, call.activation);
  feed_forward_->run(call, call.num_kept, normed, work.normed_rows, x, Store::kAdd);
}

}  // namespace pocket
