//! Measures the hot paths of the model: parsing and evaluating selectors, decoding policies.

mod decode;
mod selectors;

pub fn run() -> crate::SuiteResult {
    selectors::run()?;
    decode::run()
}
