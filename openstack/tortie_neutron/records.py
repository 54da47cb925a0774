"""Reads objects from Neutron's database, with everything on which their translation depends."""
from neutron.objects.qos import policy as qos_policy
from neutron.objects import router as router_objects
from neutron_lib import context as n_context
from neutron_lib import exceptions as n_exceptions
from neutron_lib.plugins import directory

from tortie_neutron import config

PAGE_SIZE = 100
OWNER_PREFIXES = ('compute:', 'kuryr:container')


def is_workload(port):
    """Returns whether a port belongs to a virtual machine or a container."""
    return (port.get('device_owner') or '').startswith(OWNER_PREFIXES)


class NeutronReader:
    """One reader belongs to one read: its context has a session of its own, so it sees what is committed."""

    def __init__(self):
        self.context = n_context.get_admin_context()
        self.plugin = directory.get_plugin()

    def read_port(self, port_id):
        """Returns the record of a port; None if it does not exist."""
        try:
            port = self.plugin.get_port(self.context, port_id)
        except n_exceptions.PortNotFound:
            return None
        return self.build_records([port])[0]

    def read_group(self, group_id):
        groups = self.plugin.get_security_groups(self.context, filters={'id': [group_id]})
        return groups[0] if groups else None

    def read_subnet(self, subnet_id):
        try:
            return self.plugin.get_subnet(self.context, subnet_id)
        except n_exceptions.SubnetNotFound:
            return None

    def build_records(self, ports):
        """Returns the records of ports, with a constant number of queries."""
        networks = self._index(self.plugin.get_networks, {port['network_id'] for port in ports})
        subnet_ids = {ip['subnet_id'] for port in ports for ip in port['fixed_ips']}
        subnets = self._index(self.plugin.get_subnets, subnet_ids)
        group_ids = {group for port in ports for group in port.get('security_groups') or []}
        groups = self._index(self.plugin.get_security_groups, group_ids, ['id', 'name'])
        floating = self._read_floating_ips([port['id'] for port in ports])
        policies = {}
        settings = config.read_qos_settings()
        return [{
            'port': port,
            'network': {'id': port['network_id'], 'name': networks.get(port['network_id'], {}).get('name')},
            'subnets': [{'id': ip['subnet_id'], 'gateway_ip': subnets.get(ip['subnet_id'], {}).get('gateway_ip')}
                        for ip in port['fixed_ips']],
            'security_groups': [{'id': group, 'name': groups.get(group, {}).get('name')}
                                for group in port.get('security_groups') or []],
            'floating_ips': floating.get(port['id'], []),
            'qos_rules': self._read_qos_rules(port, networks, policies),
            'qos_settings': settings,
        } for port in ports]

    def _index(self, read, ids, fields=None):
        if not ids:
            return {}
        return {found['id']: found for found in read(self.context, filters={'id': list(ids)}, fields=fields)}

    def _read_floating_ips(self, port_ids):
        found = {}
        for ip in router_objects.FloatingIP.get_objects(self.context, fixed_port_id=port_ids):
            if ip.fixed_ip_address:
                found.setdefault(ip.fixed_port_id, []).append({
                    'fixed_ip_address': str(ip.fixed_ip_address),
                    'floating_ip_address': str(ip.floating_ip_address)})
        for addresses in found.values():
            addresses.sort(key=lambda pair: (pair['fixed_ip_address'], pair['floating_ip_address']))
        return found

    def _read_qos_rules(self, port, networks, policies):
        """Returns the rules of the port's policy, or of its network's."""
        policy_id = port.get('qos_policy_id') or networks.get(port['network_id'], {}).get('qos_policy_id')
        if not policy_id:
            return []
        if policy_id not in policies:
            policy = qos_policy.QosPolicy.get_object(self.context, id=policy_id)
            policies[policy_id] = [dict(rule.to_dict(), type=rule.rule_type) for rule in policy.rules] if policy else []
        return policies[policy_id]

    def list_pages(self, read, filters=None):
        """Yields all objects of a kind in pages, in the order of their ids."""
        marker = None
        while True:
            page = read(self.context, filters=filters, sorts=[('id', True)], limit=PAGE_SIZE, marker=marker)
            if page:
                yield page
            if len(page) < PAGE_SIZE:
                return
            marker = page[-1]['id']

    def list_port_ids(self, filters):
        """Returns the ids of workload ports."""
        ports = self.plugin.get_ports(self.context, filters=filters, fields=['id', 'device_owner'])
        return [port['id'] for port in ports if is_workload(port)]
