//! Stacks as people read them: locations with their names.

use std::borrow::Cow;
use std::sync::Arc;

use allocsample_record::{Location, ModuleId, VmFrame};

use crate::model::{Profile, Sample};
use crate::roots;
use crate::symbolize::is_nameless;

/// One function of a stack, as shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// Demangled name, or `module+0x1234`: the start of the function if that is known, otherwise the call.
    pub function: String,
    /// Source file.
    pub file: Option<String>,
    /// Line, from 1; 0 for unknown.
    pub line: u32,
    /// Name of the module; empty if there is none.
    pub module: String,
    /// Whether `function` comes from a symbol.
    pub is_symbolized: bool,
    /// The end of `file`, if it takes that to tell the function from others of its language with the same name.
    pub file_end: Option<String>,
}

impl Frame {
    /// The function as people read it: with the end of its file, if its name does not tell it from others.
    pub fn label(&self) -> Cow<'_, str> {
        match &self.file_end {
            Some(end) => Cow::Owned(labelled(&self.function, end)),
            None => Cow::Borrowed(&self.function),
        }
    }
}

/// A name with the end of a file.
pub fn labelled(name: &str, end: &str) -> String {
    format!("{name}[{end}]")
}

impl Profile {
    /// The frames of a location, innermost (inlined) first; never empty.
    pub fn frames(&self, location: Location) -> Vec<Frame> {
        if location.module == ModuleId::VM {
            return self.vm_frames(location.offset);
        }
        if location.module == ModuleId::CODE {
            return vec![self.code_frame(location.offset)];
        }
        if location.module == ModuleId::NO_ROOT {
            return vec![roots::frame(location.offset)];
        }
        let module = self.module(location.module);
        let module_name = module.map_or("", |module| module.name());
        let place = || match module {
            Some(module) => format!("{}+{:#x}", module.name(), location.offset.wrapping_sub(1)),
            None => format!("{:#x}", location.offset.wrapping_sub(1)),
        };
        match self
            .symbols
            .frames
            .get(&location)
            .filter(|frames| !frames.is_empty())
        {
            Some(frames) => frames
                .iter()
                .map(|frame| {
                    let is_nameless = is_nameless(frame);
                    let function = match text(&frame.function) {
                        Some(start) if is_nameless => format!("{module_name}{start}"),
                        Some(name) => name,
                        None => place(),
                    };
                    Frame {
                        function,
                        file: text(&frame.file),
                        line: frame.line,
                        module: module_name.to_owned(),
                        is_symbolized: frame.function.is_some() && !is_nameless,
                        file_end: None,
                    }
                })
                .collect(),
            None => vec![Frame {
                function: place(),
                file: None,
                line: 0,
                module: module_name.to_owned(),
                is_symbolized: false,
                file_end: None,
            }],
        }
    }

    fn vm_frames(&self, encoded: u64) -> Vec<Frame> {
        let inlined = VmFrame::decode(encoded)
            .and_then(|frame| Some((frame, self.vm.inlined.get(&(frame.heap, frame.function))?)));
        match inlined {
            Some((frame, inlined)) => inlined
                .iter()
                .map(|&(function, line)| {
                    let frame = VmFrame {
                        function,
                        line,
                        ..frame
                    };
                    self.vm_frame(frame.encode())
                })
                .collect(),
            None => vec![self.vm_frame(encoded)],
        }
    }

    fn code_frame(&self, index: u64) -> Frame {
        let code = usize::try_from(index)
            .ok()
            .and_then(|index| self.symbols.code.get(index));
        let frame = code.map(|code| code.frame.clone()).unwrap_or_default();
        Frame {
            function: text(&frame.function).unwrap_or_default(),
            file: text(&frame.file),
            line: frame.line,
            module: String::new(),
            is_symbolized: code.is_some(),
            file_end: None,
        }
    }

    fn vm_frame(&self, encoded: u64) -> Frame {
        let frame = VmFrame::decode(encoded);
        let heap = frame.and_then(|frame| self.vm.heaps.get(&frame.heap));
        let module = heap.map_or_else(String::new, |heap| heap.name.clone());
        let file_end = frame.and_then(|frame| self.vm.ends.get(&(frame.heap, frame.function)));
        match frame.and_then(|frame| self.vm.function(frame)) {
            Some((function, line)) => Frame {
                function: function.name.clone(),
                file: (!function.file.is_empty()).then(|| function.file.clone()),
                line,
                module,
                is_symbolized: true,
                file_end: file_end.cloned(),
            },
            None => Frame {
                function: format!("{module}#{}", encoded as u32),
                file: None,
                line: 0,
                module,
                is_symbolized: false,
                file_end: None,
            },
        }
    }

    /// All frames of a sample's stack, leaf first. If the root is missing, the last one says why.
    pub fn stack_frames(&self, sample: &Sample) -> Vec<Frame> {
        let locations = self.stacks.locations(sample.stack);
        locations
            .flat_map(|location| self.frames(location))
            .collect()
    }
}

fn text(name: &Option<Arc<str>>) -> Option<String> {
    name.as_deref().map(str::to_owned)
}
