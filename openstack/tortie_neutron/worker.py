"""The worker process that executes commands of the daemon: agent reports, states of ports, resyncs."""
import concurrent.futures
import threading

from neutron.db import agents_db
from neutron.notifiers import nova
from neutron.plugins.ml2 import db as ml2_db
from neutron_lib import constants
from neutron_lib import context as n_context
from neutron_lib import exceptions as n_exceptions
from neutron_lib.plugins import directory
from neutron_lib import worker
from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils

from tortie_neutron.link import DaemonUnavailable
from tortie_neutron.resync import run_resync, Scope
from tortie_neutron.sync import migrating_to

LOG = log.getLogger(__name__)
AGENT_TYPE = 'Calico per-host agent (felix)'
AGENT_BINARY = 'calico-felix'
COMMAND_WAIT_SECONDS = 30
RETRY_SECONDS = 1
RESYNC_RETRY_SECONDS = 5


class CommandWorker(worker.BaseWorker):

    def __init__(self, link):
        super().__init__(worker_process_count=1)
        self.link = link
        self.stopped = threading.Event()
        self.resync_wanted = threading.Event()
        # The process of the daemon that responded last; None after an outage.
        self.instance = None

    def start(self, *args, **kwargs):
        super().start()
        # Resyncs run beside commands: a long one must not delay the reports of nodes, which Neutron would consider dead.
        for run in (self._run, self._run_resyncs):
            threading.Thread(target=run, daemon=True).start()

    def stop(self):
        self.stopped.set()

    def wait(self):
        self.stopped.wait()

    def reset(self):
        pass

    def _run(self):
        with concurrent.futures.ThreadPoolExecutor(cfg.CONF.calico.num_port_status_threads) as executor:
            while not self.stopped.is_set():
                try:
                    self._run_once(executor)
                except DaemonUnavailable as error:
                    LOG.debug('%s', error)
                    # Changes may have been missed meanwhile.
                    self.instance = None
                    self.stopped.wait(RETRY_SECONDS)
                except Exception:
                    LOG.exception('commands of tortie openstack failed')
                    self.stopped.wait(RETRY_SECONDS)

    def _run_once(self, executor):
        instance = self.link.get('/v1/state')['instance']
        if cfg.CONF.calico.startup_resync == 'always' and instance != self.instance:
            self.resync_wanted.set()
        self.instance = instance
        # The time limit covers the daemon's wait.
        answer = self.link.get('/v1/commands/%d' % COMMAND_WAIT_SECONDS, COMMAND_WAIT_SECONDS + self.link.timeout)
        results = list(executor.map(self._execute, answer['commands']))
        if results:
            self.link.post('/v1/results', {'results': results})

    def _execute(self, command):
        try:
            if command['op'] == 'agent':
                report_agent(command['host'], command['start_flag'])
            elif command['op'] == 'port_status':
                set_port_status(command['host'], command['port'], command['status'])
            else:
                self.resync_wanted.set()
            return {'id': command['id'], 'ok': True}
        except Exception as error:
            LOG.exception('command %s failed', command)
            return {'id': command['id'], 'ok': False, 'error': '%s: %s' % (type(error).__name__, error)}

    def _run_resyncs(self):
        while not self.stopped.is_set():
            if not self.resync_wanted.wait(RETRY_SECONDS):
                continue
            # Cleared before the resync reads anything: a request during it causes another one.
            self.resync_wanted.clear()
            try:
                self._resync()
            except DaemonUnavailable as error:
                LOG.warning('resync failed and is repeated: %s', error)
                self._retry_resync()
            except Exception:
                LOG.exception('resync failed and is repeated')
                self._retry_resync()

    def _retry_resync(self):
        self.resync_wanted.set()
        self.stopped.wait(RESYNC_RETRY_SECONDS)

    def _resync(self):
        report = run_resync(self.link, Scope())
        if report['ok']:
            LOG.info('resync: %s', report['phases'])
        else:
            LOG.error('resync: %s', report['error'])


def report_agent(host, start_flag):
    """Records that the node of a host is alive."""
    state = {'agent_type': AGENT_TYPE, 'binary': AGENT_BINARY, 'host': host, 'topic': constants.L2_AGENT_TOPIC,
             'configurations': {}}
    if start_flag:
        state['start_flag'] = True
    time = timeutils.utcnow().strftime(constants.ISO8601_TIME_FORMAT)
    agents_db.AgentExtRpcCallback(directory.get_plugin()).report_state(
        n_context.get_admin_context(), agent_state={'agent_state': state}, time=time)


def set_port_status(host, port_id, status):
    """Sets the state of a port that belongs to the host. Reports of other hosts are outdated."""
    context = n_context.get_admin_context()
    plugin = directory.get_plugin()
    try:
        port = plugin.get_port(context, port_id)
    except n_exceptions.PortNotFound:
        return
    if migrating_to(port) == host and port.get('binding:host_id') != host:
        if status == constants.PORT_STATUS_ACTIVE and cfg.CONF.notify_nova_on_port_status_changes:
            # The destination is ready: Nova continues the migration.
            nova.Notifier.get_instance().notify_port_active_direct(ml2_db.get_port(context, port_id))
        return
    if port.get('binding:host_id') == host:
        plugin.update_port_status(context, port_id, status, host=host)
