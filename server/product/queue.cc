// SPDX-License-Identifier: Apache-2.0
#include "server/product/queue.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace gemmd {

namespace {

using Flow = FairQueue::Flow;

template <typename Key, typename Flows>
const Flow* FindFlow(const Flows& flows, const Key& key) {
  const auto position = flows.find(key);
  return position == flows.end() ? nullptr : &position->second;
}

int64_t InsideOfFlow(const Flow* caller, uint64_t key, uint64_t connection) {
  const Flow* const within = caller == nullptr ? nullptr : FindFlow(caller->flows, key);
  const Flow* const flow = within == nullptr ? nullptr : FindFlow(within->flows, connection);
  return flow == nullptr ? 0 : flow->inside;
}

// Most idle flows owe nothing, because the others have caught up. If too many still owe, their
// debts are forgiven: a caller with a thousand addresses has a thousand shares anyway. So few
// remain that adding a flow rarely has to visit all of them.
template <typename Flows>
void ForgetIdle(Flows& flows, const Flow& parent, size_t max_idle) {
  if (flows.size() < parent.busy_flows + max_idle) return;
  std::erase_if(flows, [&parent](const auto& named) {
    return named.second.inside == 0 && named.second.tag_ns <= parent.virtual_ns;
  });
  if (flows.size() < parent.busy_flows + max_idle / 2) return;
  std::erase_if(flows, [](const auto& named) { return named.second.inside == 0; });
}

}  // namespace

bool FairQueue::IsEarlier::operator()(const Flow* a, const Flow* b) const {
  return a->tag_ns != b->tag_ns ? a->tag_ns < b->tag_ns : a->turn < b->turn;
}

FairQueue::Flow& FairQueue::CallerOf(std::string_view name) {
  const auto position = callers_.find(name);
  if (position != callers_.end()) return position->second;
  ForgetIdle(callers_, all_, kMaxIdle);
  Flow& caller = callers_[std::string(name)];
  caller.parent = &all_;
  return caller;
}

FairQueue::Flow& FairQueue::FlowWithin(Flow& parent, uint64_t key, size_t max_idle) {
  const auto position = parent.flows.find(key);
  if (position != parent.flows.end()) return position->second;
  ForgetIdle(parent.flows, parent, max_idle);
  Flow& flow = parent.flows[key];
  flow.parent = &parent;
  return flow;
}

FairQueue::Job& FairQueue::FirstOf(const Flow& flow) {
  const Flow* next = &flow;
  while (!next->order.empty()) next = *next->order.begin();
  return *next->waiting.first();
}

// The virtual time at which the flow's next job starts. The tag of a waiting flow is its place in
// the order. A flow that had nothing to do loses the turns that it did not take.
int64_t FairQueue::StartNs(const Flow& flow) {
  return flow.waits() ? flow.tag_ns : std::max(flow.tag_ns, flow.parent->virtual_ns);
}

// Weighs the lone flow so that a connection of either flow gets at least as much as one of the
// other.
void FairQueue::WeighLone(Flow& caller) {
  Flow& lone = FlowWithin(caller, kLone, 2);
  const Flow& joining = FlowWithin(caller, kJoining, 2);
  const size_t others = std::max<size_t>(joining.busy_flows, 1);
  lone.share = std::max(1.0, static_cast<double>(lone.busy_flows) / static_cast<double>(others));
}

void FairQueue::Enter(const FlowId& id, Job& job) {
  job.is_lone = InsideOf(id).of_connection == 0;
  Flow& caller = CallerOf(id.caller);
  caller.share = job.share;
  Flow& within = FlowWithin(caller, job.is_lone ? kLone : kJoining, 2);
  Flow& connection = FlowWithin(within, id.connection, kMaxIdleConnections);
  job.connection = id.connection;
  job.flow = &connection;
  bool waited = connection.waits();
  for (Flow* flow = job.flow; flow != &all_; flow = flow->parent) {
    const bool parent_waited = flow->parent->waits();
    if (!waited) {
      flow->tag_ns = std::max(flow->tag_ns, flow->parent->virtual_ns);
      flow->turn = ++last_turn_;
      Flow::Spares& spares = flow->parent->spares;
      if (spares.empty()) {
        flow->parent->order.insert(flow);
      } else {
        spares.back().value() = flow;
        flow->parent->order.insert(std::move(spares.back()));
        spares.pop_back();
      }
    }
    waited = parent_waited;
    flow->waiting_ns += job.cost_ns;
    if (flow->inside++ == 0) ++flow->parent->busy_flows;
  }
  connection.waiting.Insert(job);
  all_.waiting_ns += job.cost_ns;
  WeighLone(caller);
}

void FairQueue::Leave(Job& job) {
  Flow& caller = *job.flow->parent->parent;
  for (Flow* flow = job.flow; flow != &all_; flow = flow->parent) {
    assert(flow->inside > 0);
    if (--flow->inside == 0) --flow->parent->busy_flows;
  }
  if (caller.inside > 0) return;
  // If nothing waits or runs, all debts are forgotten.
  for (auto& [key, within] : caller.flows) {
    if (within.flows.size() > kMaxKeptConnections) within.flows.clear();
    if (within.spares.size() > kMaxKeptConnections) within.spares = Flow::Spares();
    for (auto& [connection, flow] : within.flows) flow.tag_ns = 0;
    within.tag_ns = within.virtual_ns = 0;
  }
}

void FairQueue::Remove(Job& job) {
  if (!job.flow->waiting.Remove(job)) return;
  for (Flow* flow = job.flow; flow != &all_; flow = flow->parent) {
    flow->waiting_ns -= job.cost_ns;
    if (!flow->waits()) flow->parent->spares.push_back(flow->parent->order.extract(flow));
  }
  all_.waiting_ns -= job.cost_ns;
}

void FairQueue::Launch(Job& job, int64_t cost_ns) {
  std::array<int64_t, kLevels> starts_ns = {};
  auto start_ns = starts_ns.begin();
  for (Flow* flow = job.flow; flow != &all_; flow = flow->parent) {
    *start_ns = StartNs(*flow);
    flow->parent->virtual_ns = std::max(flow->parent->virtual_ns, *start_ns++);
  }
  Remove(job);
  job.cost_ns = cost_ns;
  start_ns = starts_ns.begin();
  for (Flow* flow = job.flow; flow != &all_; flow = flow->parent) {
    Move(*flow, *start_ns++ + VirtualNs(cost_ns, flow->share));
  }
}

void FairQueue::Correct(Job& job, int64_t more_ns) {
  for (Flow* flow = job.flow; flow != &all_; flow = flow->parent) {
    Move(*flow, flow->tag_ns + VirtualNs(more_ns, flow->share));
  }
}

void FairQueue::Move(Flow& flow, int64_t tag_ns) {
  Flow::Order& order = flow.parent->order;
  Flow::Order::node_type node;
  const bool is_alone = order.size() == 1;  // A lone flow is in order whatever its tag is.
  if (flow.waits() && !is_alone) node = order.extract(&flow);
  flow.tag_ns = tag_ns;
  flow.turn = ++last_turn_;
  if (!node.empty()) order.insert(std::move(node));
}

// Adds to `ahead_ns` the jobs of other flows of the parent that precede a further job of `own`,
// which is null if that flow is not in memory. Returns what those flows are expected to add.
int64_t FairQueue::AddAhead(const Flow& parent, const Flow* own, int64_t enough_ns,
                            int64_t& ahead_ns) {
  const int64_t own_ns = ahead_ns;
  double to_come_ns = 0;
  int64_t start_ns = own == nullptr ? parent.virtual_ns : StartNs(*own);
  if (own != nullptr) start_ns += VirtualNs(own_ns, own->share);
  for (const Flow* const other : parent.order) {
    if (other->tag_ns > start_ns || ahead_ns > enough_ns) break;
    if (other == own) continue;
    // A flow's jobs start until its tag passes that of the further job, and the last of them runs
    // to its end.
    const double turn_ns = static_cast<double>(start_ns - other->tag_ns) * other->share +
                           static_cast<double>(FirstOf(*other).cost_ns);
    const auto waiting_ns = static_cast<double>(other->waiting_ns);
    const bool is_less = turn_ns < waiting_ns;
    ahead_ns += is_less ? static_cast<int64_t>(turn_ns) : other->waiting_ns;
    to_come_ns += std::clamp(turn_ns - waiting_ns, 0.0, waiting_ns);
  }
  const double max_ns = static_cast<double>(kMaxToCome) * static_cast<double>(own_ns);
  return static_cast<int64_t>(std::min(to_come_ns, max_ns));
}

FairQueue::Path FairQueue::FindPath(const FlowId& id) const {
  Path path = {.caller = FindFlow(callers_, id.caller)};
  if (path.caller == nullptr) return path;
  const bool is_lone = InsideOf(id).of_connection == 0;
  path.within = FindFlow(path.caller->flows, is_lone ? kLone : kJoining);
  if (path.within != nullptr) path.connection = FindFlow(path.within->flows, id.connection);
  return path;
}

FairQueue::Ahead FairQueue::AheadOf(const FlowId& id, int64_t enough_ns) const {
  const auto [caller, within, connection] = FindPath(id);
  Ahead ahead = {.waiting_ns = connection == nullptr ? 0 : connection->waiting_ns};
  if (within != nullptr) {
    ahead.to_come_ns += AddAhead(*within, connection, enough_ns, ahead.waiting_ns);
  }
  // The two flows within a caller have the same connections, so no arrivals between them are
  // expected.
  if (caller != nullptr) AddAhead(*caller, within, enough_ns, ahead.waiting_ns);
  ahead.to_come_ns += AddAhead(all_, caller, enough_ns, ahead.waiting_ns);
  return ahead;
}

FairQueue::Inside FairQueue::InsideOf(const FlowId& id) const {
  const Flow* const caller = FindFlow(callers_, id.caller);
  return {.of_caller = caller == nullptr ? 0 : caller->inside,
          .of_connection = InsideOfFlow(caller, kLone, id.connection) +
                           InsideOfFlow(caller, kJoining, id.connection)};
}

size_t FairQueue::connections() const {
  size_t count = 0;
  for (const auto& [name, caller] : callers_) {
    for (const auto& [key, within] : caller.flows) count += within.flows.size();
  }
  return count;
}

size_t FairQueue::spares() const {
  size_t count = all_.spares.size();
  for (const auto& [name, caller] : callers_) {
    count += caller.spares.size();
    for (const auto& [key, within] : caller.flows) count += within.spares.size();
  }
  return count;
}

namespace {

constexpr size_t kNormal = static_cast<size_t>(Priority::kNormal);
constexpr size_t kLow = static_cast<size_t>(Priority::kLow);

}  // namespace

void DeviceQueue::Add(const FlowId& flow, Job& job) {
  job.cost_ns = job.expected_ns();
  ClassOf(job).fair.Enter(flow, job);
}

void DeviceQueue::Remove(Job& job) {
  Class& of = ClassOf(job);
  Unlist(of, job);
  of.fair.Leave(job);
}

void DeviceQueue::Unlist(Class& of, Job& job) {
  of.fair.Remove(job);
  if (of.doubtful.Remove(job)) of.doubtful_ns -= job.cost_ns;
}

void DeviceQueue::SetAside(Class& of, Job& job) {
  Unlist(of, job);
  job.is_doubtful = true;
  of.doubtful.Insert(job);
  of.doubtful_ns += job.cost_ns;
}

bool DeviceQueue::empty() const { return classes_[kNormal].empty() && classes_[kLow].empty(); }

// The class whose turn it is; null if nothing waits.
DeviceQueue::Class* DeviceQueue::NextClass() {
  Class& normal = classes_[kNormal];
  Class& low = classes_[kLow];
  if (low.empty()) {
    owed_to_low_ns_ = 0;
    return normal.empty() ? nullptr : &normal;
  }
  const bool is_turn_of_low = normal.empty() || owed_to_low_ns_ >= low.first().cost_ns;
  return is_turn_of_low ? &low : &normal;
}

DeviceQueue::Choice DeviceQueue::TakeNext(int64_t now_ns) {
  Choice choice;
  while (Class* const of = NextClass()) {
    Job& job = of->first();
    const int64_t left_ns = LeftNs(job.deadline_ns, now_ns);
    if (left_ns <= 0 || left_ns < job.predicted_ns) {
      Remove(job);
      choice.too_late.push_back(&job);
    } else if (left_ns < SafeNs(job.cost_ns) && !job.is_doubtful && !job.is_promised) {
      SetAside(*of, job);
    } else {
      Launch(*of, job);
      choice.next = &job;
      break;
    }
  }
  return choice;
}

void DeviceQueue::Launch(Class& of, Job& job) {
  if (of.doubtful.Remove(job)) of.doubtful_ns -= job.cost_ns;
  of.fair.Launch(job, job.expected_ns());
  const Class& others = classes_[job.priority == Priority::kNormal ? kLow : kNormal];
  job.is_owed_for = !others.empty();
  Owe(job, job.cost_ns);
}

// The job had the device for `had_ns` while the other priority waited.
void DeviceQueue::Owe(const Job& job, int64_t had_ns) {
  if (!job.is_owed_for) return;
  owed_to_low_ns_ += job.priority == Priority::kNormal ? had_ns / (kLowPart - 1) : -had_ns;
}

void DeviceQueue::End(Job& job, int64_t ran_ns) {
  FairQueue& fair = ClassOf(job).fair;
  fair.Correct(job, ran_ns - job.cost_ns);
  // What is owed is forgotten if no job of low priority waits.
  if (!classes_[kLow].empty()) Owe(job, ran_ns - job.cost_ns);
  fair.Leave(job);
}

FairQueue::Ahead DeviceQueue::AheadOf(const FlowId& flow, Priority priority,
                                      int64_t enough_ns) const {
  FairQueue::Ahead ahead = Of(priority).fair.AheadOf(flow, enough_ns);
  if (priority == Priority::kLow) ahead.waiting_ns += classes_[kNormal].waiting_ns();
  return ahead;
}

int64_t DeviceQueue::waiting_ns() const {
  return classes_[kNormal].waiting_ns() + classes_[kLow].waiting_ns();
}

FairQueue::Inside DeviceQueue::InsideOf(const FlowId& flow) const {
  const FairQueue::Inside normal = classes_[kNormal].fair.InsideOf(flow);
  const FairQueue::Inside low = classes_[kLow].fair.InsideOf(flow);
  return {.of_caller = normal.of_caller + low.of_caller,
          .of_connection = normal.of_connection + low.of_connection};
}

void LightFlows::Add(const FlowId& flow, int64_t predicted_ns, int64_t now_ns) {
  Entry* place = nullptr;
  for (Entry& entry : entries_) {
    if (entry.IsOver(now_ns)) entry = Entry{};
    if (entry.IsOf(flow) && entry.until_ns > now_ns) place = &entry;
  }
  if (place == nullptr) {
    Entry& heaviest = *std::max_element(
        entries_.begin(), entries_.end(),
        [](const Entry& left, const Entry& right) { return left.min_ns < right.min_ns; });
    if (predicted_ns >= heaviest.min_ns) return;
    heaviest = {.caller = std::string(flow.caller), .connection = flow.connection};
    place = &heaviest;
  }
  // Larger products do not extend the time for which a small one counts.
  if (predicted_ns > place->min_ns) return;
  place->min_ns = predicted_ns;
  place->until_ns = now_ns + kMemoryNs;
}

int64_t LightFlows::MinOfOthers(const FlowId& flow, int64_t now_ns) const {
  int64_t min_ns = std::numeric_limits<int64_t>::max();
  for (const Entry& entry : entries_) {
    if (!entry.IsOf(flow) && !entry.IsOver(now_ns)) min_ns = std::min(min_ns, entry.min_ns);
  }
  return min_ns;
}

}  // namespace gemmd
