//! A process that runs a Go program.

use std::io;
use std::path::{Path, PathBuf};

use allocsample_record::SymbolFrame;

use crate::buckets::{Buckets, Unreadable};
use crate::functions::FunctionTable;
use crate::image::Image;
use crate::memory::{Memory, ProcessMemory};
use crate::module::Code;
use crate::variables::Variables;

/// Why the heap profile of a Go program cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GoError {
    /// The kernel does not allow it, or the process is gone.
    #[error("{what}: {error}")]
    Read {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        error: io::Error,
    },
    /// Older than Go 1.18, or newer than this program.
    #[error("its table of functions has another layout than that of Go 1.18 to 1.27")]
    Functions,
    /// Not where it is in the versions that we know.
    #[error("the description of its code (runtime.firstmoduledata) is not found")]
    Module,
    /// Stripped, and the code that uses it was not recognised.
    #[error("it has no symbols, and {0} is not found without them")]
    Variable(&'static str),
    /// See [`Unreadable`].
    #[error(transparent)]
    Buckets(#[from] Unreadable),
}

/// A running Go program.
#[derive(Debug)]
pub struct Runtime {
    pid: u32,
    path: PathBuf,
    image: Image,
    code: Code,
    memory: ProcessMemory,
    bias: u64,
    variables: Variables,
}

impl Runtime {
    /// The program of this process; `None`: it is not in Go.
    pub fn find(pid: u32) -> Result<Option<Self>, GoError> {
        let read = |what| move |error| GoError::Read { what, error };
        let file = PathBuf::from(format!("/proc/{pid}/exe"));
        let path = std::fs::read_link(&file).map_err(read("its executable cannot be read"))?;
        let Some(image) = Image::open(&file).map_err(read("its executable cannot be read"))? else {
            return Ok(None);
        };
        let memory = ProcessMemory::open(pid).map_err(read("its memory cannot be read"))?;
        let bias = entry(pid)
            .map_err(read("its auxiliary vector cannot be read"))?
            .wrapping_sub(image.entry);
        let (at, length) = image.functions;
        let functions = image.bytes(at, length).and_then(FunctionTable::parse);
        let functions = functions.ok_or(GoError::Functions)?;
        let code = Code::find(&image, functions, &memory, bias).ok_or(GoError::Module)?;
        let mut variables = Variables::default();
        variables.find(&image, &code, &memory, bias);
        Ok(Some(Self {
            pid,
            path,
            image,
            code,
            memory,
            bias,
            variables,
        }))
    }

    /// Whether this is a Go program, by its file alone.
    pub fn is_go(executable: &Path) -> io::Result<bool> {
        Ok(Image::open(executable)?.is_some())
    }

    /// Whether the dynamic loader started it: C code in it may allocate besides.
    pub fn is_dynamic(&self) -> bool {
        self.image.is_dynamic
    }

    /// The name of its executable, without directories.
    pub fn program_name(&self) -> Vec<u8> {
        let name = self.path.file_name().unwrap_or_default();
        // The kernel's addition if the file is gone.
        let name = name.as_encoded_bytes();
        name.strip_suffix(b" (deleted)").unwrap_or(name).to_vec()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn build_id(&self) -> &[u8] {
        &self.image.build_id
    }

    /// Difference of an address in the process and in the file.
    pub(crate) fn bias(&self) -> u64 {
        self.bias
    }

    /// Where the program lies in the process.
    pub(crate) fn extent(&self) -> (u64, u64) {
        let (start, end) = self.image.extent();
        (start.wrapping_add(self.bias), end.wrapping_add(self.bias))
    }

    /// The source of a return address.
    pub(crate) fn frame(&self, return_address: u64) -> Option<SymbolFrame> {
        let place = self.code.place(&self.image, return_address)?;
        Some(place.frame())
    }

    /// Mean bytes between two samples, 0: the runtime takes none.
    pub fn rate(&self) -> Result<u64, GoError> {
        let missing = GoError::Variable("runtime.MemProfileRate");
        let at = self.variables.rate.ok_or(missing)?;
        let rate = self.memory.word(at).ok_or(Unreadable::Gone)?;
        // A negative rate is none.
        Ok(if rate.cast_signed() < 0 { 0 } else { rate })
    }

    /// Changes it. Go's documentation allows a program to do that at any time; objects that were sampled before stay sampled.
    /// The first sample of every processor after it is not drawn by chance.
    pub fn set_rate(&self, rate: u64) -> Result<(), GoError> {
        let missing = GoError::Variable("runtime.MemProfileRate");
        let at = self.variables.rate.ok_or(missing)?;
        self.write(at, &rate.to_le_bytes())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), GoError> {
        self.memory.write(at, bytes).map_err(|error| GoError::Read {
            what: "its sampling rate cannot be set",
            error,
        })
    }

    /// Makes a program that has not begun to run take samples from its first allocation on, as it does if it reads its own
    /// profile. False if the variable is not found by which the linker has decided against it.
    ///
    /// Up to Go 1.20 the runtime sets the rate once more before it calls the program's code: to a constant in its code, which is
    /// changed as well if it is found.
    pub fn switch_on(&self, rate: u64) -> Result<bool, GoError> {
        self.set_rate(rate)?;
        if let (Some(at), Ok(rate)) = (self.variables.default, u32::try_from(rate)) {
            self.write(at, &rate.to_le_bytes())?;
        }
        let Some(at) = self.variables.switch else {
            return Ok(false);
        };
        self.write(at, &[0])?;
        Ok(true)
    }

    /// Reads the counts of all buckets, and what is new.
    pub fn read(&mut self, buckets: &mut Buckets) -> Result<(), GoError> {
        let Self {
            image,
            code,
            memory,
            bias,
            variables,
            ..
        } = self;
        if variables.buckets.is_none() {
            variables.find(image, code, memory, *bias);
        }
        match variables.buckets {
            Some(head) => Ok(buckets.read(memory, head)?),
            // A stripped program has no bucket yet, or none that is recognised.
            None => match memory.word(code.probe()) {
                Some(_) => Ok(()),
                None => Err(Unreadable::Gone.into()),
            },
        }
    }

    /// Whether the list of buckets is found. In a stripped program that happens when there is a first one.
    pub fn has_buckets(&self) -> bool {
        self.variables.buckets.is_some()
    }
}

/// Where the process's program begins, by the kernel's auxiliary vector.
fn entry(pid: u32) -> io::Result<u64> {
    const AT_ENTRY: u64 = 9;
    let bytes = std::fs::read(format!("/proc/{pid}/auxv"))?;
    let words = crate::memory::words_of(&bytes);
    let pair = words.chunks_exact(2).find(|pair| pair[0] == AT_ENTRY);
    pair.map(|pair| pair[1])
        .ok_or_else(|| io::Error::other("it has no entry"))
}
