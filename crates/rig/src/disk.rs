//! A disk of one node: a file with an ext4 of its own, mounted over a loop device. It can be filled, cut off from power
//! and damaged, and is gone with the value.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use rustix::fs::{FallocateFlags, fallocate};

use crate::error::Error;
use crate::system::run_on;

/// What takes the room of a full disk.
const FILL: &str = "fill";
/// A disk that stays busy for longer has a process on it that we do not know.
const BUSY_MAX: Duration = Duration::from_secs(10);
/// Bytes at a file's end that a bit flip leaves alone: what was written last may not be proven to be synced.
const TAIL_BYTES: u64 = 64 * 1024;
/// Records of a log segment begin here.
const RECORDS_START: u64 = 4096;

/// One disk.
pub(crate) struct Disk {
    image: PathBuf,
    mount: PathBuf,
    is_mounted: bool,
}

impl Disk {
    /// A new disk in `dir`, mounted.
    pub(crate) fn new(dir: &Path, name: &str, bytes: u64) -> Result<Disk, Error> {
        let (image, mount) = (dir.join(format!("{name}.img")), dir.join(format!("{name}.mnt")));
        let made = File::create(&image).and_then(|file| file.set_len(bytes));
        made.and_then(|()| fs::create_dir_all(&mount))
            .map_err(Error::io(format!("make {}", image.display())))?;
        // From here on its value has to remove what is there.
        let mut disk = Disk { image, mount, is_mounted: false };
        run_on("mkfs.ext4 -q -F -m 0", &[&disk.image])?;
        disk.mount()?;
        Ok(disk)
    }

    /// Where the node keeps its data.
    pub(crate) fn data(&self) -> PathBuf {
        self.mount.join("data")
    }

    fn mount(&mut self) -> Result<(), Error> {
        run_on("mount -o loop", &[&self.image, &self.mount])?;
        self.is_mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), Error> {
        let began = Instant::now();
        // Whoever was killed a moment ago may not be quite gone.
        while let Err(error) = run_on("umount", &[&self.mount]) {
            if began.elapsed() > BUSY_MAX {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.is_mounted = false;
        Ok(())
    }

    /// From now on nothing more gets onto the disk, and what is in the system's cache never will. What went past that is in the
    /// file below already, synced or not: a real disk may still lose it, and the simulated one does.
    pub(crate) fn cut_power(&self) -> Result<(), Error> {
        let shut = File::open(&self.mount).and_then(|root| shut_down(&root));
        shut.map_err(Error::io(format!("shut down {}", self.mount.display())))
    }

    /// Power is back. Nobody may use the disk.
    pub(crate) fn power_on(&mut self) -> Result<(), Error> {
        self.unmount()?;
        self.mount()
    }

    /// Takes all room that is left.
    pub(crate) fn fill(&self) -> Result<(), Error> {
        let filled = File::create(self.mount.join(FILL)).and_then(|file| {
            let (mut at, mut chunk) = (0, 64 << 20);
            while chunk >= 4096 {
                match fallocate(&file, FallocateFlags::empty(), at, chunk) {
                    Ok(()) => at += chunk,
                    Err(rustix::io::Errno::NOSPC) => chunk /= 2,
                    Err(error) => return Err(io::Error::from(error)),
                }
            }
            Ok(())
        });
        filled.map_err(Error::io(format!("fill {}", self.mount.display())))
    }

    /// Gives the room back, for good: a power loss must not bring the file back.
    pub(crate) fn empty(&self) -> Result<(), Error> {
        let removed =
            fs::remove_file(self.mount.join(FILL)).and_then(|()| File::open(&self.mount)?.sync_all());
        removed.map_err(Error::io("make room"))
    }

    /// Removes the node's data.
    pub(crate) fn wipe(&self) -> Result<(), Error> {
        fs::remove_dir_all(self.data()).map_err(Error::io("wipe"))
    }

    /// Flips a few bits of one file that nobody has open; which, and where.
    pub(crate) fn flip(&self, rng: &mut StdRng) -> Result<String, Error> {
        let failed = || Error::io(format!("flip bits in {}", self.mount.display()));
        let files = closed_files(&self.data()).map_err(failed())?;
        if files.is_empty() {
            return Ok("nothing to damage yet".to_owned());
        }
        let path = &files[rng.random_range(0..files.len())];
        flip_in(path, rng).map_err(failed())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted && self.unmount().is_err() {
            let _ = run_on("umount --lazy", &[&self.mount]);
        }
        let _ = fs::remove_file(&self.image);
        let _ = fs::remove_dir(&self.mount);
    }
}

/// Segments of the log and checkpoints.
fn closed_files(data: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut dirs) = (Vec::new(), vec![data.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let ends = |ending: &str| path.extension().is_some_and(|known| known == ending);
            if path.is_dir() {
                dirs.push(path);
            } else if ends("seg") || ends("redb") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn flip_in(path: &Path, rng: &mut StdRng) -> io::Result<String> {
    let file = File::options().read(true).write(true).open(path)?;
    let used = used_bytes(&file)?;
    let end = used.saturating_sub(TAIL_BYTES).max(RECORDS_START + 1);
    let at = rng.random_range(RECORDS_START..end);
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, at)?;
    for byte in &mut bytes {
        *byte ^= 1 << rng.random_range(0..8);
    }
    file.write_all_at(&bytes, at)?;
    file.sync_all()?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!("{name} at {at} of {used}"))
}

/// Until where a file is not zero: segments are zeros behind the last record.
fn used_bytes(file: &File) -> io::Result<u64> {
    let mut end = file.metadata()?.len();
    let mut page = [0; 4096];
    while end > page.len() as u64 {
        let start = end - page.len() as u64;
        file.read_exact_at(&mut page, start)?;
        if page.iter().any(|&byte| byte != 0) {
            return Ok(end);
        }
        end = start;
    }
    Ok(end)
}

/// `EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`: the file system stops as it is, its journal unwritten.
#[allow(unsafe_code, reason = "there is no safe call for this request")]
fn shut_down(root: &File) -> io::Result<()> {
    use rustix::ioctl::{Setter, ioctl};
    const SHUTDOWN: rustix::ioctl::Opcode = 0x8004_587d;
    const NO_LOG_FLUSH: u32 = 2;
    // SAFETY: the request reads one u32, which is what is handed over, and writes nothing.
    unsafe { ioctl(root, Setter::<SHUTDOWN, u32>::new(NO_LOG_FLUSH)) }?;
    Ok(())
}

/// Unmounts what rigs that are no more left below `dir`, and removes it.
pub(crate) fn remove_leftovers(dir: &Path) -> Result<(), Error> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    let mounts = fs::read_to_string("/proc/mounts").map_err(Error::io("read /proc/mounts"))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let pid = name.strip_prefix("run-").and_then(|rest| rest.split('-').next()).unwrap_or_default();
        if pid.is_empty() || Path::new("/proc").join(pid).exists() {
            continue;
        }
        let below = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        for mount in below.filter(|mount| Path::new(mount).starts_with(&path)) {
            run_on("umount --lazy", &[Path::new(mount)])?;
        }
        for image in fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if image.extension().is_some_and(|ending| ending == "img") {
                let _ = fs::remove_file(image);
            }
        }
    }
    Ok(())
}
