"""Options in neutron.conf."""
from oslo_config import cfg

FAIL = 'fail'
RESYNC = 'resync'

CALICO_OPTIONS = [
    cfg.StrOpt('openstack_region', default='',
               help='Name of the region; must be the same for the daemon.'),
    cfg.StrOpt('startup_resync', default='always', choices=['always', 'never'],
               help='Whether the driver compares etcd with Neutron when it or the daemon starts.'),
    cfg.IntOpt('num_port_status_threads', default=4, min=1, max=64,
               help='Number of threads that write the states of ports.'),
    cfg.IntOpt('max_ingress_connections_per_port', default=0, min=0),
    cfg.IntOpt('max_egress_connections_per_port', default=0, min=0),
    cfg.IntOpt('ingress_burst_bits', default=4294967296, min=0),
    cfg.IntOpt('egress_burst_bits', default=4294967296, min=0),
    cfg.IntOpt('ingress_minburst_bytes', default=0, min=0),
    cfg.IntOpt('egress_minburst_bytes', default=0, min=0),
    cfg.IntOpt('ingress_burst_packets', default=5, min=0),
    cfg.IntOpt('egress_burst_packets', default=5, min=0),
]
TORTIE_OPTIONS = [
    cfg.StrOpt('socket', default='/run/tortie/openstack.sock',
               help='Unix socket of the daemon `tortie openstack`.'),
    cfg.IntOpt('timeout', default=25, min=1,
               help='Time limit for a request to the daemon, in seconds.'),
    cfg.StrOpt('on_unavailable', default=FAIL, choices=[FAIL, RESYNC],
               help='What happens to a change in Neutron while the daemon or etcd is unavailable: `fail` rejects it '
                    'before it is committed, `resync` commits it and leaves etcd to the next resync.'),
]
QOS_SETTINGS = ('ingress_burst_bits', 'egress_burst_bits', 'ingress_minburst_bytes', 'egress_minburst_bytes',
                'ingress_burst_packets', 'egress_burst_packets', 'max_ingress_connections_per_port',
                'max_egress_connections_per_port')


def register_options(conf=cfg.CONF):
    conf.register_opts(CALICO_OPTIONS, 'calico')
    conf.register_opts(TORTIE_OPTIONS, 'tortie')


def read_qos_settings(conf=cfg.CONF):
    return {name: conf.calico[name] for name in QOS_SETTINGS}
