"""The QoS driver: declares the supported rules and forwards changes of policies."""
from neutron_lib.api.definitions import portbindings
from neutron_lib import constants
from neutron_lib.db import constants as db_constants
from neutron_lib.services.qos import base
from neutron_lib.services.qos import constants as qos_constants

DRIVER_NAME = 'calico'
_NUMBER = {'type:range': [0, db_constants.DB_INTEGER_MAX_VALUE]}
_DIRECTION = {'type:values': constants.VALID_DIRECTIONS}
SUPPORTED_RULES = {
    qos_constants.RULE_TYPE_BANDWIDTH_LIMIT: {
        qos_constants.MAX_KBPS: _NUMBER,
        qos_constants.MAX_BURST: _NUMBER,
        qos_constants.DIRECTION: _DIRECTION,
    },
    qos_constants.RULE_TYPE_PACKET_RATE_LIMIT: {
        qos_constants.MAX_KPPS: _NUMBER,
        qos_constants.MAX_BURST_KPPS: {'type:values': [0]},
        qos_constants.DIRECTION: _DIRECTION,
    },
}


class TortieQosDriver(base.DriverBase):

    @classmethod
    def create(cls, mechanism_driver):
        driver = cls(name=DRIVER_NAME, vif_types=[portbindings.VIF_TYPE_TAP], vnic_types=[portbindings.VNIC_NORMAL],
                     supported_rules=SUPPORTED_RULES, requires_rpc_notifications=False)
        driver.mechanism_driver = mechanism_driver
        return driver

    @property
    def is_loaded(self):
        return True

    def update_policy(self, context, policy):
        self.mechanism_driver.on_policy(policy)
