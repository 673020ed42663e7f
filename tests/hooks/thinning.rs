//! Promise: what is left of a machine's samples at a longer interval follows that interval's law.

use crate::support::Program;

#[test]
fn objects_are_samples_with_the_probability_of_the_longer_interval() {
    let program = Program::compiled_with("thinning.c", &["-lm"]);
    let outcome = program.run().bare();
    assert_eq!(outcome.assert_success().text(), "thinned\n");
}
