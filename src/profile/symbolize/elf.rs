//! Names from an ELF file and its debug file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use addr2line::Loader;
use addr2line::gimli::{BaseAddresses, EhFrame, EhFrameHdr, LittleEndian, UnwindSection};
use allocsample_record::{Location, SymbolFrame, readable};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

use super::opened::Opened;
use super::{demangle, nameless};
use crate::model::Module;

/// Names those of the module's locations that have one.
pub(super) fn symbolize(
    module: &Module,
    locations: &[Location],
    root: Option<&Path>,
) -> Vec<(Location, Vec<SymbolFrame>)> {
    let path = file_of(module);
    let inside = root.map(|root| root.join(path.strip_prefix("/").unwrap_or(path)));
    let open = |path: &Path| Opened::at(path, &module.build_id);
    let found = match &inside {
        None => open(path),
        // The process may have gone, and its root with it. Another root may have another file there: the build id tells.
        Some(inside) => open(inside).or_else(|| open(path).filter(|_| !module.build_id.is_empty())),
    };
    let Some(opened) = found else {
        return Vec::new();
    };
    let opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
    let symbols = &opened.symbols;
    let extents = opened.extents(locations.iter().map(|location| address_of(*location)));
    locations
        .iter()
        .filter_map(|&location| {
            let address = address_of(location);
            let frames = opened
                .debug
                .as_ref()
                .and_then(|debug| dwarf_frames(debug, address, symbols));
            let frames = frames.or_else(|| {
                let function = Some(symbols.name(address, &extents)?.into());
                Some(vec![SymbolFrame {
                    function,
                    file: None,
                    line: 0,
                }])
            })?;
            Some((location, frames))
        })
        .collect()
}

/// An address within the call: it lies before the return address.
fn address_of(location: Location) -> u64 {
    location.offset.wrapping_sub(1)
}

/// The kernel's mark on the path of a program whose file was replaced while it ran. By an upgrade, usually, but also by
/// the same file again: where there is a build id, it tells.
fn file_of(module: &Module) -> &Path {
    let path = match module.path.strip_suffix(" (deleted)") {
        Some(path) if !module.build_id.is_empty() => path,
        _ => &module.path,
    };
    Path::new(path)
}

fn dwarf_frames(debug: &Loader, address: u64, symbols: &Symbols) -> Option<Vec<SymbolFrame>> {
    let mut found = debug.find_frames(address).ok()?;
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = found.next()
        && frames.len() < MOST_INLINED
    {
        let (file, line) = match frame.location {
            Some(place) => (place.file, place.line.unwrap_or(0)),
            None => (None, 0),
        };
        let function = frame
            .function
            .as_ref()
            .and_then(|name| {
                let raw = name.raw_name().ok()?;
                let readable = name.demangle().ok()?;
                Some(demangle::debug_name(&raw, readable.into_owned(), file))
            })
            .map(|name| readable(name.as_bytes()).into());
        let file = file.map(|file| readable(file.as_bytes()).into());
        frames.push(SymbolFrame {
            function,
            file,
            line,
        });
    }
    // The function that the others are inlined into.
    if let Some(outermost) = frames.last_mut()
        && let Some(symbol) = symbols.covering(address)
        && let Some(method) = demangle::of_crystal(&symbol.name)
    {
        outermost.function = Some(readable(method.as_bytes()).into());
    }
    // Lines without a function are no better than the symbol table.
    (!frames.is_empty() && frames.iter().all(|frame| frame.function.is_some())).then_some(frames)
}

/// Where distributions put the debug file of a build id.
pub(super) fn debug_file(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = PathBuf::from(format!("/usr/lib/debug/.build-id/{first:02x}/{rest}.debug"));
    path.exists().then_some(path)
}

struct Symbol {
    start: u64,
    end: u64,
    name: String,
}

/// Calls inlined into each other, of which compilers make some dozens.
const MOST_INLINED: usize = 256;

/// A larger file is no module. It may be one without end.
const LARGEST_FILE: u64 = 4 << 30;

/// All of an ELF file. A profile may name any file as a module: a pipe, which nobody writes to, or a device without end.
pub(super) fn read_elf(path: &Path) -> Option<Vec<u8>> {
    const MAGIC: &[u8] = b"\x7fELF";
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.is_file() || metadata.len() > LARGEST_FILE {
        return None;
    }
    let file = File::open(path).ok()?;
    let mut bytes = Vec::new();
    (&file)
        .take(MAGIC.len() as u64)
        .read_to_end(&mut bytes)
        .ok()?;
    if bytes != MAGIC {
        return None;
    }
    (&file).take(LARGEST_FILE).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Functions with a known extent, by address.
pub(super) struct Symbols {
    by_address: Vec<Symbol>,
    /// Whether it is a program of Nim.
    is_nim: bool,
    /// Whether debug information expands to no more than it may.
    pub(super) has_sound_dwarf: bool,
}

impl Symbols {
    /// `None` if it is not the file that ran.
    pub(super) fn of(bytes: &[u8], build_id: &[u8]) -> Option<Self> {
        let file = object::File::parse(bytes).ok()?;
        if file.build_id().ok().flatten().unwrap_or(&[]) != build_id {
            return None;
        }
        let mut symbols = Vec::new();
        let mut has_sound_dwarf = is_proportionate(&file, bytes.len());
        collect(&file, bytes.len(), &mut symbols);
        if let Some(path) = debug_file(build_id)
            && let Some(bytes) = read_elf(&path)
            && let Ok(file) = object::File::parse(&*bytes)
        {
            has_sound_dwarf &= is_proportionate(&file, bytes.len());
            collect(&file, bytes.len(), &mut symbols);
        }
        collect_plt(&file, &mut symbols);
        // Of several names for one address the one that covers least, then the shortest (`malloc`, not `__libc_malloc`).
        symbols.sort_by(|a, b| {
            (a.start, a.end, a.name.len(), &a.name).cmp(&(b.start, b.end, b.name.len(), &b.name))
        });
        symbols.dedup_by_key(|symbol| symbol.start);
        let is_nim = symbols.iter().any(|symbol| symbol.name == "NimMain");
        Some(Self {
            is_nim,
            by_address: symbols,
            has_sound_dwarf,
        })
    }

    fn covering(&self, address: u64) -> Option<&Symbol> {
        let symbols = &self.by_address;
        let after = symbols.partition_point(|symbol| symbol.start <= address);
        let symbol = after.checked_sub(1).map(|index| &symbols[index]);
        symbol.filter(|symbol| address < symbol.end)
    }

    /// The function that covers `address`; never merely the nearest below. Without a symbol it is called after its start, by the
    /// extents of functions.
    fn name(&self, address: u64, extents: &[(u64, u64)]) -> Option<String> {
        match self.covering(address) {
            Some(symbol) => {
                let name = demangle::symbol(&symbol.name, self.is_nim);
                Some(readable(name.as_bytes()).into_owned())
            }
            None => {
                let after = extents.partition_point(|(start, _)| *start <= address);
                let (start, end) = *extents.get(after.checked_sub(1)?)?;
                (address < end).then(|| nameless(start))
            }
        }
    }
}

/// The extents of the functions that cover these addresses, by the unwind tables, in order.
pub(super) fn extents(
    file: &object::File<'_>,
    addresses: impl Iterator<Item = u64>,
) -> Vec<(u64, u64)> {
    let section = |name| {
        let section = file.section_by_name(name)?;
        Some((section.address(), section.data().ok()?))
    };
    let (Some((header_at, header)), Some((frames_at, frames))) =
        (section(".eh_frame_hdr"), section(".eh_frame"))
    else {
        return Vec::new();
    };
    let text_at = section(".text").map_or(0, |(address, _)| address);
    let bases = BaseAddresses::default()
        .set_eh_frame_hdr(header_at)
        .set_eh_frame(frames_at)
        .set_text(text_at);
    let address_bytes = if file.is_64() { 8 } else { 4 };
    let Ok(header) = EhFrameHdr::new(header, LittleEndian).parse(&bases, address_bytes) else {
        return Vec::new();
    };
    let Some(table) = header.table() else {
        return Vec::new();
    };
    let frames = EhFrame::new(frames, LittleEndian);
    let extent = |address| {
        let cie = EhFrame::cie_from_offset;
        let entry = table.fde_for_address(&frames, &bases, address, cie).ok()?;
        let start = entry.initial_address();
        Some((start, start.checked_add(entry.len())?))
    };
    let mut extents: Vec<(u64, u64)> = addresses.filter_map(extent).collect();
    extents.sort_unstable();
    extents.dedup();
    extents
}

/// Whether the compressed sections of a file claim to expand to what compilers' do.
fn is_proportionate(file: &object::File<'_>, file_bytes: usize) -> bool {
    const ALWAYS: u64 = 64 << 20;
    const TIMES: u64 = 20;
    let sizes = file
        .sections()
        .map(|section| match section.compressed_file_range() {
            Ok(range) if range.format != object::CompressionFormat::None => range.uncompressed_size,
            _ => 0,
        });
    sizes.fold(0, u64::saturating_add) <= ALWAYS + TIMES * file_bytes as u64
}

/// Adds the functions of a file of so many bytes. Names may be parts of each other: of more names than the file has bytes for
/// twice, the rest is left out.
fn collect(file: &object::File<'_>, file_bytes: usize, symbols: &mut Vec<Symbol>) {
    let mut left = 2 * file_bytes;
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let is_code = symbol.kind() == SymbolKind::Text && symbol.is_definition();
        if let (true, Ok(name)) = (is_code && symbol.size() > 0, symbol.name())
            && !name.is_empty()
        {
            let (start, end) = (
                symbol.address(),
                symbol.address().saturating_add(symbol.size()),
            );
            let Some(rest) = left.checked_sub(name.len()) else {
                break;
            };
            left = rest;
            symbols.push(Symbol {
                start,
                end,
                name: name.to_owned(),
            });
        }
    }
}

/// Stubs that jump to other modules: a frame in one is a tail call caught on its way.
fn collect_plt(file: &object::File<'_>, symbols: &mut Vec<Symbol>) {
    for section in file.sections() {
        if let Ok(name @ (".plt" | ".plt.sec" | ".plt.got")) = section.name() {
            let (start, end) = (
                section.address(),
                section.address().saturating_add(section.size()),
            );
            symbols.push(Symbol {
                start,
                end,
                name: format!("[{name}]"),
            });
        }
    }
}
