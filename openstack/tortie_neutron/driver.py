"""The ML2 mechanism driver `tortie`, also known as `calico`."""
from neutron_lib.api.definitions import portbindings
from neutron_lib.callbacks import events, registry, resources
from neutron_lib.plugins.ml2 import api
from oslo_config import cfg
from oslo_log import log

from tortie_neutron import config, qos
from tortie_neutron.link import DaemonLink, DaemonUnavailable
from tortie_neutron.missed import MissedChanges
from tortie_neutron.records import is_workload, NeutronReader
from tortie_neutron.sync import Synchronizer
from tortie_neutron.worker import AGENT_TYPE, CommandWorker

LOG = log.getLogger(__name__)
NETWORK_TYPES = ('local', 'flat')
# A change of nothing else does not concern the network.
IRRELEVANT_FIELDS = ('status', 'updated_at', 'revision_number')
FALLBACK_MAC = '00:61:fe:ed:ca:fe'


class TortieMechanismDriver(api.MechanismDriver):

    def initialize(self):
        config.register_options()
        self.link = DaemonLink(cfg.CONF.tortie.socket, cfg.CONF.tortie.timeout)
        self.synchronizer = Synchronizer(self.link)
        self.missed = MissedChanges(self.link)
        self.qos_driver = qos.TortieQosDriver.create(self)
        before = (events.PRECOMMIT_CREATE, events.PRECOMMIT_UPDATE, events.PRECOMMIT_DELETE)
        for resource, handler in ((resources.SECURITY_GROUP, self.on_group), (resources.SECURITY_GROUP_RULE, self.on_rule),
                                  (resources.FLOATING_IP, self.on_floating_ip)):
            for event in before:
                registry.subscribe(self.on_precommit, resource, event)
            for event in (events.AFTER_CREATE, events.AFTER_UPDATE, events.AFTER_DELETE):
                registry.subscribe(handler, resource, event)

    @property
    def connectivity(self):
        return portbindings.CONNECTIVITY_L3

    def check_vlan_transparency(self, context):
        return False

    def get_workers(self):
        return [CommandWorker(self.link)]

    # Port binding

    def bind_port(self, context):
        if not any(agent['alive'] for agent in context.host_agents(AGENT_TYPE)):
            LOG.warning('port %s is not bound: no live node reports from host %s', context.current['id'], context.host)
            return
        mac = context.current.get('mac_address') or ''
        mac = 'fe' + mac[2:] if len(mac) == len(FALLBACK_MAC) else FALLBACK_MAC
        for segment in context.segments_to_bind:
            if segment[api.NETWORK_TYPE] in NETWORK_TYPES:
                details = {'port_filter': True, 'mac_address': mac}
                context.set_binding(segment[api.ID], portbindings.VIF_TYPE_TAP, details)
                return

    # Availability

    def check_daemon(self):
        """Fails if changes must not be committed while the daemon is unavailable, and it is."""
        if cfg.CONF.tortie.on_unavailable == config.FAIL:
            self.link.get('/v1/state')

    def send(self, change, *args):
        """Sends a change that is committed. A change that cannot be sent is left to a resync."""
        try:
            change(*args)
        except DaemonUnavailable as error:
            self.missed.record()
            if cfg.CONF.tortie.on_unavailable == config.FAIL:
                raise
            LOG.warning('%s; the change is left to the next resync', error)

    def send_quietly(self, change, *args):
        """Like `send`, for events whose errors nobody would handle."""
        try:
            self.send(change, *args)
        except DaemonUnavailable as error:
            LOG.error('%s; the change is left to the next resync', error)

    # Ports

    def create_port_precommit(self, context):
        if is_workload(context.current):
            self.check_daemon()

    def update_port_precommit(self, context):
        if self._is_relevant(context):
            self.check_daemon()

    delete_port_precommit = create_port_precommit

    def create_port_postcommit(self, context):
        if is_workload(context.current):
            self.send(self.synchronizer.sync_port, context.current)

    def update_port_postcommit(self, context):
        if self._is_relevant(context):
            self.send(self.synchronizer.sync_port, context.current, context.original)

    def delete_port_postcommit(self, context):
        if is_workload(context.current):
            self.send(self.synchronizer.sync_port, context.current)

    @staticmethod
    def _is_relevant(context):
        current, original = context.current, context.original or {}
        if not (is_workload(current) or is_workload(original)):
            return False
        keys = set(current) | set(original)
        return any(current.get(key) != original.get(key) for key in keys if key not in IRRELEVANT_FIELDS)

    # Subnets and networks

    def create_subnet_precommit(self, context):
        self.check_daemon()

    update_subnet_precommit = create_subnet_precommit
    delete_subnet_precommit = create_subnet_precommit

    def create_subnet_postcommit(self, context):
        self.send(self.synchronizer.sync_subnet, context.current['id'])

    delete_subnet_postcommit = create_subnet_postcommit

    def update_subnet_postcommit(self, context):
        self.create_subnet_postcommit(context)
        if context.current.get('gateway_ip') != context.original.get('gateway_ip'):
            self.send(self._sync_ports_of, {'fixed_ips': {'subnet_id': [context.current['id']]}})

    def update_network_postcommit(self, context):
        current, original = context.current, context.original
        if any(current.get(field) != original.get(field) for field in ('name', 'qos_policy_id')):
            self.send(self._sync_ports_of, {'network_id': [current['id']]})

    def _sync_ports_of(self, filters):
        self.synchronizer.sync_ports(NeutronReader().list_port_ids(filters))

    # Security groups and floating IPs

    def on_precommit(self, resource, event, trigger, payload=None):
        self.check_daemon()

    def on_group(self, resource, event, trigger, payload=None):
        self.send_quietly(self.synchronizer.sync_group, payload.resource_id)
        names = {state.get('name') for state in payload.states if state}
        if event == events.AFTER_UPDATE and len(names) > 1:
            # The name is part of the labels of endpoints.
            self.send_quietly(self._sync_ports_of, {'security_groups': [payload.resource_id]})

    def on_rule(self, resource, event, trigger, payload=None):
        group = (payload.metadata or {}).get('security_group_id')
        for state in payload.states or []:
            group = group or (state or {}).get('security_group_id')
        if group:
            self.send_quietly(self.synchronizer.sync_group, group)

    def on_floating_ip(self, resource, event, trigger, payload=None):
        ports = {state.get('port_id') for state in payload.states or [] if state}
        metadata = payload.metadata or {}
        ports.update((metadata.get('last_known_port_id'), metadata.get('fixed_port_id')))
        self.send_quietly(self.synchronizer.sync_ports, sorted(port for port in ports if port))

    # QoS

    def on_policy(self, policy):
        """Writes the endpoints of all ports that a QoS policy limits."""
        reader = NeutronReader()
        ports = set(policy.get_bound_ports())
        networks = policy.get_bound_networks()
        if networks:
            ports.update(reader.list_port_ids({'network_id': networks}))
        self.send_quietly(self.synchronizer.sync_ports, sorted(ports))
