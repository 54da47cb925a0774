//! The rules of a policy or profile, in the form in which they are needed at the moment.
//!
//! Most policies of a cluster concern no endpoint of this node. Their rules are kept as text, which takes a fraction of the
//! memory, until they are needed.

use super::convert::Converter;
use super::sets::Need;
use std::sync::Arc;
use tortie_model::kinds;
use tortie_plan::{Action, Rule};

/// What the plan has, and the sets it needs.
pub(super) type Told<T> = (Arc<T>, Box<[Arc<Need>]>);

#[derive(Debug)]
pub(super) enum Body<T> {
    /// Nothing goes, whatever the rules say.
    Deny,
    /// Ingress and egress, as they came.
    Written(Box<(Vec<kinds::Rule>, Vec<kinds::Rule>)>),
    Text(Box<[u8]>),
    Ready(Arc<T>, Box<[Arc<Need>]>),
}

impl<T> Body<T> {
    pub fn new(rules: Option<(Vec<kinds::Rule>, Vec<kinds::Rule>)>) -> Body<T> {
        rules.map_or(Body::Deny, |rules| Body::Written(Box::new(rules)))
    }

    /// Converts the rules, unless that is done. What cannot be converted denies everything, and the reason is returned.
    pub fn prepare(
        &mut self,
        converter: Converter<'_>,
        finish: impl FnOnce(Vec<Rule>, Vec<Rule>) -> T,
    ) -> Option<String> {
        let converted = match self {
            Body::Ready(..) => return None,
            Body::Deny => Ok((deny(), deny(), Box::default())),
            Body::Written(rules) => convert(converter, &rules.0, &rules.1),
            Body::Text(text) => match serde_json::from_slice::<(Vec<kinds::Rule>, Vec<kinds::Rule>)>(text) {
                Ok((ingress, egress)) => convert(converter, &ingress, &egress),
                Err(error) => Err(error.to_string()),
            },
        };
        let (converted, problem) = match converted {
            Ok(converted) => (converted, None),
            Err(reason) => ((deny(), deny(), Box::default()), Some(reason)),
        };
        let (ingress, egress, needs) = converted;
        *self = Body::Ready(Arc::new(finish(ingress, egress)), needs);
        problem
    }

    /// Not needed at the moment.
    pub fn rest(&mut self) {
        if let Body::Written(rules) = self
            && let Ok(text) = serde_json::to_vec(&**rules)
        {
            *self = Body::Text(text.into());
        }
    }
}

type Converted = (Vec<Rule>, Vec<Rule>, Box<[Arc<Need>]>);

fn convert(
    mut converter: Converter<'_>,
    ingress: &[kinds::Rule],
    egress: &[kinds::Rule],
) -> Result<Converted, String> {
    let (ingress, egress) = (converter.rules(ingress)?, converter.rules(egress)?);
    Ok((ingress, egress, converter.needs.into()))
}

pub(super) fn deny() -> Vec<Rule> {
    vec![Rule::new(Action::Deny)]
}
