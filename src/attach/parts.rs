//! The parts of the process's own code that we use: functions of its C library, two instructions, and the agent if it
//! is loaded.

use crate::AttachError;
use crate::borrow::is_c_library;
use crate::helper::Word;
use crate::image::{Image, Memory};
use crate::machine::{SIGNAL_RETURN, SYSTEM_CALL_AND_RETURN, has_instructions};
use crate::remote::Instructions;
use crate::target::{Mapping, Target, file_name, is_agent};

/// Functions of the C library.
pub(crate) struct Functions {
    pub pthread_create: u64,
    pub for_helper: Vec<(Word, u64)>,
}

pub(crate) fn present_function(
    target: &Target,
    memory: &Memory,
    mappings: &[Mapping],
    name: &str,
) -> Result<Option<u64>, AttachError> {
    let agent = |mapping: &&Mapping| is_agent(mapping) && mapping.offset == 0;
    let Some(agent) = mappings.iter().find(agent) else {
        return Ok(None);
    };
    let function = Image::read(memory, agent.start)
        .ok()
        .and_then(|image| image.function(name));
    match function {
        Some(function) => Ok(Some(function.address)),
        None => Err(AttachError::CannotLoad {
            pid: target.pid(),
            reason: "an older version of it is loaded already".to_owned(),
        }),
    }
}

pub(crate) fn find_functions(
    target: &Target,
    memory: &Memory,
    mappings: &[Mapping],
) -> Result<Functions, AttachError> {
    let is_part = |name: &str| {
        is_c_library(name) || name.starts_with("libpthread") || name.starts_with("libdl")
    };
    let parts = mappings
        .iter()
        .filter(|mapping| mapping.offset == 0 && is_part(file_name(&mapping.path)));
    let images: Vec<Image> = parts
        .filter_map(|part| Image::read(memory, part.start).ok())
        .collect();
    let find = |name: &'static str| {
        let mut found = images.iter().filter_map(|image| image.function(name));
        let missing = AttachError::OldLibc {
            pid: target.pid(),
            function: name,
        };
        found.next().map(|found| found.address).ok_or(missing)
    };
    let for_helper = [
        (Word::Dlopen, "dlopen"),
        (Word::Dlsym, "dlsym"),
        (Word::Dlerror, "dlerror"),
        (Word::PthreadSelf, "pthread_self"),
        (Word::PthreadDetach, "pthread_detach"),
        (Word::Usleep, "usleep"),
        (Word::ClockGettime, "clock_gettime"),
        (Word::Munmap, "munmap"),
    ];
    let for_helper = for_helper
        .into_iter()
        .map(|(word, name)| Ok((word, find(name)?)))
        .collect::<Result<_, AttachError>>()?;
    Ok(Functions {
        pthread_create: find("pthread_create")?,
        for_helper,
    })
}

pub(crate) fn find_instructions(
    target: &Target,
    memory: &Memory,
    mappings: &[Mapping],
) -> Result<Instructions, AttachError> {
    for mapping in mappings.iter().filter(|mapping| has_instructions(mapping)) {
        let bytes = memory.read_some(mapping.start, (mapping.end - mapping.start) as usize);
        let at = |pattern: &[u8]| {
            let at = bytes
                .windows(pattern.len())
                .position(|window| window == pattern)?;
            Some(mapping.start + at as u64)
        };
        let both = (at(&SYSTEM_CALL_AND_RETURN), at(&SIGNAL_RETURN));
        if let (Some(system_call), Some(signal_return)) = both {
            return Ok(Instructions {
                system_call,
                signal_return,
            });
        }
    }
    Err(AttachError::OldLibc {
        pid: target.pid(),
        function: "a system call that could be borrowed",
    })
}
