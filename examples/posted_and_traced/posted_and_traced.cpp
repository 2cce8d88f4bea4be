// What the public interface offers beside blocking collectives: heap memory, posted operations on a stream of their own, groups,
// a trace with a span, and errors. Each rank prints what it got, which operations and spans its trace holds, and why a call was
// refused.
//
//   tsprun -n 4 run -- build/posted_and_traced
#include <cstdio>
#include <span>
#include <string>

#include <tsprun/tsprun.h>

namespace {

/// Passes this rank's number to the next rank, with a posted operation on memory of the heap, and returns what arrived.
float from_previous(tsprun::Context& context) {
  tsprun::Communicator& world = context.world();
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  const tsprun::HeapBlock block = context.allocate_elements<float>(2, "the example's two numbers");
  const std::span<float> numbers = block.as<float>();
  numbers[0] = static_cast<float>(world.rank());
  tsprun::Work work = world.post_send_recv(numbers.first(1), next, numbers.last(1), previous,
                                           {.stream = tsprun::Stream::weights, .purpose = tsprun::Purpose::weights});
  while (!work.test()) context.tick();
  return numbers[1];
}

/// Returns the number of ranks whose rank is even or odd as this one's.
int alike(tsprun::Context& context) { return context.world().split(context.rank() % 2, context.rank()).size(); }

/// Returns why a call with a wrong argument fails, and in which operation.
std::string refusal(tsprun::Communicator& world) {
  try {
    world.broadcast({}, world.size());
  } catch (const tsprun::Error& error) {
    return std::string(name(error.cause())) + " in " + error.op();
  }
  return "no refusal";
}

}  // namespace

int main() {
  tsprun::Context context = tsprun::Context::from_environment();
  tsprun::Trace trace(context);
  float previous = 0;
  int members = 0;
  {
    const tsprun::TraceSpan span(trace, "step", 1);
    previous = from_previous(context);
    members = alike(context);
  }
  std::string events;
  for (const tsprun::TraceEvent& event : trace.events()) {
    if (event.name != "wait") events += " " + std::string(event.name);  // a rank that comes last waits for nobody
  }
  std::printf("rank %d: %g from the previous, %d alike, traced%s, %s\n", context.rank(), static_cast<double>(previous), members,
              events.c_str(), refusal(context.world()).c_str());
}
