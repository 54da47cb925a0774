"""Changes that are committed in Neutron, but could not be sent to the daemon."""
import threading
import time

from tortie_neutron.link import DaemonUnavailable

RETRY_SECONDS = 1


class MissedChanges:
    """Reports them to the daemon as soon as it responds, also if this process has no other change to send."""

    def __init__(self, link):
        self.link = link
        self.lock = threading.Lock()
        # Changes since the last report; a thread runs while there are any.
        self.count = 0

    def record(self):
        with self.lock:
            self.count += 1
            is_first = self.count == 1
        if is_first:
            threading.Thread(target=self._report, daemon=True).start()

    def _report(self):
        while True:
            with self.lock:
                count = self.count
            try:
                self.link.post('/v1/missed')
            except DaemonUnavailable:
                time.sleep(RETRY_SECONDS)
                continue
            with self.lock:
                # A change that was missed after the request needs another resync.
                if self.count == count:
                    self.count = 0
                    return
