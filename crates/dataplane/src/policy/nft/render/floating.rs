//! Floating addresses: translates connections to a floating address into connections to its workload.
//!
//! Only packets that arrive at the node are translated. Packets that the node itself sends are not, in contrast to
//! Calico: an address in a pod's annotation must never decide where the daemon, kubelet and other programs on the host
//! reach the cluster's servers. As in [`super::nat`], matching and translating are separate chains. A workload that
//! connects to its own floating address would receive its replies directly, without the reverse translation, so its
//! source is translated to that address.

use super::super::rule::{NatEnd, NftAction, NftFamily, NftField, NftMatch, NftRule};
use super::super::table::{ChainHook, HookPoint, NftChain, NftElement, NftSet, SetType, address_bytes, join};
use super::names;
use std::collections::BTreeMap;
use tortie_plan::FloatingIp;

/// Before the chains that translate services.
const FLOATING_DNAT_PRIORITY: i32 = -110;

/// The chains, sets and rules for floating addresses.
#[derive(Debug, Default)]
pub struct FloatingChains {
    pub chains: Vec<(String, NftChain)>,
    pub sets: Vec<(String, NftSet)>,
    /// Rules for the beginning of the chain that translates sources.
    pub outgoing: Vec<NftRule>,
}

/// Renders all floating addresses. If several workloads share one, it belongs to the workload whose own address sorts
/// first as text; a workload with several uses the first of them as its source.
pub fn render<'f>(all: impl Iterator<Item = &'f FloatingIp>) -> FloatingChains {
    let mut all: Vec<FloatingIp> = all.copied().collect();
    all.sort_by_key(|floating| (floating.external.to_string(), floating.internal.to_string()));
    let mut rendered = FloatingChains::default();
    let mut entering = Vec::new();
    for family in NftFamily::BOTH {
        let pairs = AddressPairs::new(&all, family);
        if !pairs.internal.is_empty() {
            entering.push(rendered.add_family(family, pairs));
        }
    }
    if !entering.is_empty() {
        let hook = ChainHook::nat(HookPoint::Prerouting, FLOATING_DNAT_PRIORITY);
        rendered.chains.push(("floating-in".to_owned(), NftChain { hook: Some(hook), rules: entering }));
    }
    rendered
}

/// The floating addresses of one family, and the addresses of their workloads.
#[derive(Default)]
struct AddressPairs {
    /// Address of the workload by floating address.
    internal: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Floating address by address of the workload.
    external: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl AddressPairs {
    fn new(all: &[FloatingIp], family: NftFamily) -> AddressPairs {
        let mut pairs = AddressPairs::default();
        for FloatingIp { external, internal } in all {
            let is_taken = pairs.internal.contains_key(&address_bytes(*external));
            if NftFamily::from(*external) == family && !is_taken {
                pairs.internal.insert(address_bytes(*external), address_bytes(*internal));
                pairs.external.entry(address_bytes(*internal)).or_insert_with(|| address_bytes(*external));
            }
        }
        pairs
    }
}

impl FloatingChains {
    /// Adds the chains, sets and rules of one family. Returns the rule for packets that enter the node.
    fn add_family(&mut self, family: NftFamily, pairs: AddressPairs) -> NftRule {
        let source = NftField::Source(family);
        let destination = NftField::Destination(family);
        let externals = names::floating("external", family);
        let internals = names::floating("internal", family);
        let dnat = names::floating("dnat", family);
        let snat = names::floating("snat", family);
        let to = names::floating("to", family);
        let back = names::floating("back", family);

        let addressed = vec![NftMatch::family(family), NftMatch::lookup([destination], externals.clone())];
        let entering = NftRule::new(addressed, vec![NftAction::Goto(dnat.clone())]);
        let itself = vec![
            NftMatch::family(family),
            NftMatch::lookup([source], internals.clone()),
            NftMatch::lookup([destination], internals.clone()),
        ];
        self.outgoing.push(NftRule::new(itself, vec![NftAction::Jump(snat.clone())]));
        self.add_translation(dnat, NatEnd::Destination, family, vec![destination], to.clone());
        self.add_translation(snat, NatEnd::Source, family, vec![source, destination], back.clone());

        let AddressPairs { internal, external } = pairs;
        self.add_set(externals, SetType::Addresses(family), internal.keys().cloned().map(NftElement::key));
        self.add_set(internals, SetType::Addresses(family), external.keys().cloned().map(NftElement::key));
        let elements = internal.into_iter().map(|(key, value)| NftElement::translation(key, value));
        self.add_set(to, SetType::Translations(family), elements);
        let elements =
            external.into_iter().map(|(key, value)| NftElement::translation(join(&[&key, &key]), value));
        self.add_set(back, SetType::PairTranslations(family), elements);
        entering
    }

    fn add_set(&mut self, name: String, kind: SetType, elements: impl Iterator<Item = NftElement>) {
        self.sets.push((name, NftSet { kind, elements: elements.collect() }));
    }

    /// Adds a chain that translates by a map.
    fn add_translation(
        &mut self,
        chain: String,
        end: NatEnd,
        family: NftFamily,
        fields: Vec<NftField>,
        map: String,
    ) {
        let translate = NftAction::TranslateBy { end, family, fields, map };
        let rules = vec![NftRule::new(Vec::new(), vec![translate])];
        self.chains.push((chain, NftChain { hook: None, rules }));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::table::ElementData;
    use super::*;

    fn floating(external: &str, internal: &str) -> FloatingIp {
        FloatingIp { external: external.parse().unwrap(), internal: internal.parse().unwrap() }
    }

    #[test]
    fn shared_floating_addresses_belong_to_the_first_workload() {
        let all = [
            floating("192.0.2.2", "10.0.0.1"),
            floating("192.0.2.1", "10.0.0.1"),
            floating("192.0.2.1", "10.0.0.2"),
        ];
        let rendered = render(all.iter());
        let elements = |name: &str| {
            let (_, set) = rendered.sets.iter().find(|(set, _)| set == name).unwrap();
            set.elements.iter().map(|element| element.data.clone()).collect::<Vec<_>>()
        };
        let value = |address: [u8; 4]| ElementData::Value(address.into());
        assert_eq!(elements("floating-to-4"), [value([10, 0, 0, 1]), value([10, 0, 0, 1])]);
        assert_eq!(elements("floating-back-4"), [value([192, 0, 2, 1])]);
        assert!(
            rendered.sets.iter().all(|(name, ..)| name.ends_with('4')),
            "nothing for a family without any"
        );
        assert!(render([].iter()).chains.is_empty());
    }
}
