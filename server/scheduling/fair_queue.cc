// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/fair_queue.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace gemmd {

FairQueue::Flow& FairQueue::FlowOf(std::string_view name) {
  const auto position = flows_.find(name);
  if (position != flows_.end()) return position->second;
  if (flows_.size() >= busy_flows_ + kMostIdle) ForgetIdle();
  return flows_.emplace(std::string(name), Flow()).first->second;
}

void FairQueue::Enter(std::string_view name, Job& job) {
  Flow& flow = FlowOf(name);
  job.flow = &flow;
  flow.share = job.share;
  if (flow.inside++ == 0) ++busy_flows_;
  const bool was_empty = flow.waiting.empty();
  flow.waiting.emplace_hint(flow.waiting.end(), job.id, &job);
  flow.waiting_ns += job.cost_ns;
  waiting_ns_ += job.cost_ns;
  if (!was_empty) return;
  // A flow that had nothing to do has lost the turns that it did not take.
  flow.tag_ns = std::max(flow.tag_ns, virtual_ns_);
  flow.turn = ++last_turn_;
  order_.insert(&flow);
}

void FairQueue::Leave(Job& job) {
  assert(job.flow->inside > 0);
  if (--job.flow->inside == 0) --busy_flows_;
}

// Most idle flows owe nothing, because the others have caught up. The debts of the rest are given
// up where there are too many: whoever has a thousand addresses has a thousand shares anyway.
void FairQueue::ForgetIdle() {
  std::erase_if(flows_, [this](const auto& named) {
    return named.second.inside == 0 && named.second.tag_ns <= virtual_ns_;
  });
  if (flows_.size() < busy_flows_ + kMostIdle) return;
  std::erase_if(flows_, [](const auto& named) { return named.second.inside == 0; });
}

void FairQueue::Remove(Job& job) {
  Flow& flow = *job.flow;
  if (flow.waiting.erase(job.id) == 0) return;
  flow.waiting_ns -= job.cost_ns;
  waiting_ns_ -= job.cost_ns;
  if (flow.waiting.empty()) order_.erase(&flow);
}

void FairQueue::Launch(Job& job, int64_t cost_ns) {
  Flow& flow = *job.flow;
  // The tag of a flow that waits is not too old, and stands for its place in the order.
  const int64_t tag_ns = flow.waiting.empty() ? std::max(flow.tag_ns, virtual_ns_) : flow.tag_ns;
  virtual_ns_ = std::max(virtual_ns_, tag_ns);
  Remove(job);
  job.cost_ns = cost_ns;
  Move(flow, tag_ns + VirtualNs(job.cost_ns, job.share));
}

void FairQueue::Move(Flow& flow, int64_t tag_ns) {
  Order::node_type node;
  const bool is_alone = order_.size() == 1;  // Any tag is in its place.
  if (!flow.waiting.empty() && !is_alone) node = order_.extract(&flow);
  flow.tag_ns = tag_ns;
  flow.turn = ++last_turn_;
  if (!node.empty()) order_.insert(std::move(node));
}

int64_t FairQueue::AheadNs(std::string_view name, int64_t enough_ns) const {
  const auto position = flows_.find(name);
  const Flow* const own = position == flows_.end() ? nullptr : &position->second;
  int64_t ahead_ns = own == nullptr ? 0 : own->waiting_ns;
  int64_t start_ns = own == nullptr ? virtual_ns_ : own->tag_ns;
  if (own != nullptr && own->waiting.empty()) start_ns = std::max(start_ns, virtual_ns_);
  if (own != nullptr) start_ns += VirtualNs(ahead_ns, own->share);
  for (const Flow* const other : order_) {
    if (other->tag_ns > start_ns || ahead_ns > enough_ns) break;
    if (other == own) continue;
    // Its jobs start until its tag is beyond the further job's; the last of them runs to its end.
    const double turn_ns = static_cast<double>(start_ns - other->tag_ns) * other->share +
                           static_cast<double>(other->waiting.begin()->second->cost_ns);
    const bool is_less = turn_ns < static_cast<double>(other->waiting_ns);
    ahead_ns += is_less ? static_cast<int64_t>(turn_ns) : other->waiting_ns;
  }
  return ahead_ns;
}

double FairQueue::PaceOf(std::string_view name) const {
  const auto position = flows_.find(name);
  return position == flows_.end() ? 1 : position->second.pace;
}

int64_t FairQueue::InsideOf(std::string_view name) const {
  const auto position = flows_.find(name);
  return position == flows_.end() ? 0 : position->second.inside;
}

}  // namespace gemmd
