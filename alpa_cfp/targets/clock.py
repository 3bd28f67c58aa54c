"""The queues of a device at a place in a schedule: how far each is, what it did, and what was waited for.

Takes what is waited for; gives the clock afterwards. Invariant: the computing queue's time is what it computed and what
it waited for.
"""

from dataclasses import dataclass, replace

_TOTALS = ("now_s", "computing_s", "communicating_s", "exposed_s", "copies_s")


@dataclass(frozen=True, slots=True)
class Clock:
    """The queues at a place in the schedule.

    Attributes:
        now_s: When the computing queue is there.
        communicated_until_s, copied_until_s: When the other queues will have done what they have by now.
        computing_s, communicating_s: What they did.
        exposed_s, copies_s: What the computing queue waited for communication, and for copies.
    """

    now_s: float = 0.0
    communicated_until_s: float = 0.0
    copied_until_s: float = 0.0
    computing_s: float = 0.0
    communicating_s: float = 0.0
    exposed_s: float = 0.0
    copies_s: float = 0.0

    def waiting_for_communication(self, until_s: float) -> "Clock":
        # What is waited for was enqueued before, so the communicating queue is never idle meanwhile.
        waited_s = max(0.0, until_s - self.now_s)
        return replace(self, now_s=self.now_s + waited_s, exposed_s=self.exposed_s + waited_s)

    def waiting_for_copy(self, until_s: float) -> "Clock":
        waited_s = max(0.0, until_s - self.now_s)
        return replace(self, now_s=self.now_s + waited_s, copies_s=self.copies_s + waited_s)

    def again(self, before: "Clock", times: int) -> "Clock":
        """This clock after all that was done since `before` is done so many times more."""
        grown = {name: getattr(self, name) + times * (getattr(self, name) - getattr(before, name)) for name in _TOTALS}
        passed_s = grown["now_s"] - self.now_s
        later = {name: getattr(self, name) + passed_s for name in ("communicated_until_s", "copied_until_s")}
        return Clock(**grown, **later)
