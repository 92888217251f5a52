// SPDX-License-Identifier: Apache-2.0

package cerr

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// inProgram is whether the device is part of the program.
var inProgram atomic.Bool

// machine finds hints about the cause of a failed call. It reads files of the
// machine, which are small and do not block.
type machine struct {
	files       fs.FS
	accessible  func(name string) bool           // reports whether this process may read and write the file
	descriptors func() (open, most int, ok bool) // returns the number of open descriptors of this process, and their limit
}

var here = machine{os.DirFS("/"), func(name string) bool { return accessible("/" + name) }, descriptors}

// mostRead limits the number of bytes that are read from a file.
const mostRead = 1 << 20

// read returns the content of a file, or "" if it cannot be read.
func (m machine) read(name string) string {
	f, err := m.files.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostRead))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// list returns the names of the files in a directory.
func (m machine) list(name string) (names []string) {
	entries, _ := fs.ReadDir(m.files, name)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// unknown returns no hint. It is used for calls whose failure the machine may
// not explain.
func (m machine) unknown() string { return "" }

// spareDescriptors is the number of free descriptors up to which openFiles
// returns a hint. A call that failed because it could not open another
// descriptor may have closed so many.
const spareDescriptors = 16

// openFiles returns a hint if this process can open few more files, or none. If
// it can open none, the other methods of machine find nothing, because they
// cannot read files.
func (m machine) openFiles() string {
	open, most, ok := m.descriptors()
	if !ok || open < most-spareDescriptors {
		return ""
	}
	return fmt.Sprintf("this process has %d of at most %d files open; see ulimit -n", open, most) + Doctor
}

// module returns a hint if the kernel has no RDMA support loaded.
func (m machine) module() string {
	if full := m.openFiles(); full != "" {
		return full
	}
	if _, err := fs.Stat(m.files, "sys/class/infiniband_verbs"); err == nil {
		return ""
	}
	return noModule
}

// device returns a hint if there is no RDMA device, or this process cannot open
// one.
func (m machine) device() string {
	if full := m.openFiles(); full != "" {
		return full
	}
	if len(m.list("sys/class/infiniband")) == 0 {
		return noDevice
	}
	return m.access()
}

// access returns a hint if this process cannot open the files of RDMA devices.
func (m machine) access() string {
	if full := m.openFiles(); full != "" {
		return full
	}
	names := m.list("dev/infiniband")
	if len(names) == 0 {
		return noAccess
	}
	for _, name := range names {
		if (strings.HasPrefix(name, "uverbs") || name == "rdma_cm") && !m.accessible("dev/infiniband/"+name) {
			return noAccess
		}
	}
	return m.handles()
}

// handles returns a hint if a control group permits no more open devices.
func (m machine) handles() string { return m.group("", "hca_handle") }

// dmabuf returns a hint about why a region of a DMA buffer is not supported.
func (m machine) dmabuf() string {
	var major, minor int
	if n, _ := fmt.Sscanf(m.read("proc/sys/kernel/osrelease"), "%d.%d", &major, &minor); n < 2 {
		return ""
	}
	if major > 5 || major == 5 && minor >= 12 {
		return noDMABuf
	}
	return oldKernel
}

// group returns a hint if a control group of this process has used up its limit
// of a resource on a device. The resource is hca_handle or hca_object. An empty
// device means any device.
func (m machine) group(device, resource string) string {
	group, ok := strings.CutPrefix(m.read("proc/self/cgroup"), "0::")
	if !ok {
		return ""
	}
	for group = path.Clean("/" + strings.TrimSpace(group)); group != "/"; group = path.Dir(group) {
		folder := path.Join("sys/fs/cgroup", group)
		used := groupValues(m.read(folder+"/rdma.current"), resource)
		for name, most := range groupValues(m.read(folder+"/rdma.max"), resource) {
			if (device == "" || device == name) && used[name] >= most {
				return fmt.Sprintf("the control group %s allows %d of %s on %s, and all are in use; see rdma.max there", group, most, resource, name) + Doctor
			}
		}
	}
	return ""
}

// groupValues returns the numbers of a resource by device. text has lines such
// as "rxe0 hca_handle=2 hca_object=max".
func groupValues(text, resource string) map[string]int {
	values := map[string]int{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		for _, word := range words[min(1, len(words)):] {
			if number, ok := strings.CutPrefix(word, resource+"="); ok {
				if n, err := strconv.Atoi(number); err == nil {
					values[words[0]] = n
				}
			}
		}
	}
	return values
}

// capIPCLock is the number of the capability that permits a process to lock any
// amount of memory.
const capIPCLock = 14

// locked returns a hint if this process may not lock that many more bytes of
// memory.
func (m machine) locked(more int64) string {
	var pinned, capabilities uint64
	status := bufio.NewScanner(strings.NewReader(m.read("proc/self/status")))
	for status.Scan() {
		name, value, _ := strings.Cut(status.Text(), ":")
		words := strings.Fields(value)
		if len(words) == 0 {
			continue
		}
		switch name {
		case "VmPin": // only memory that is locked for devices counts towards the limit
			pinned, _ = strconv.ParseUint(words[0], 10, 53)
		case "CapEff":
			capabilities, _ = strconv.ParseUint(words[0], 16, 64)
		}
	}
	limit, ok := lockLimit(m.read("proc/self/limits"))
	if !ok || capabilities>>capIPCLock&1 != 0 {
		return ""
	}
	inUse := int64(pinned) << 10
	if more <= 0 || more <= limit-inUse {
		return ""
	}
	return fmt.Sprintf("the limit on locked memory is %d KiB, of which %d are in use; see ulimit -l", limit>>10, inUse>>10) + Doctor
}

// lockLimit returns the soft limit of locked memory in bytes. ok is false if
// there is no limit.
func lockLimit(limits string) (bytes int64, ok bool) {
	for line := range strings.Lines(limits) {
		if rest, found := strings.CutPrefix(line, "Max locked memory"); found {
			words := strings.Fields(rest)
			if len(words) == 0 {
				return 0, false
			}
			n, err := strconv.ParseInt(words[0], 10, 63)
			return n, err == nil // the word "unlimited" fails to parse
		}
	}
	return 0, false
}

// memory returns a hint if the way in which memory of this process is mapped
// prevents a device from using it. writes says whether the device would write
// to it.
func (m machine) memory(addr, size uint64, writes bool) string {
	f, err := m.files.Open("proc/self/maps")
	if err != nil {
		return ""
	}
	defer f.Close()
	maps := bufio.NewScanner(io.LimitReader(f, 16*mostRead))
	for maps.Scan() {
		var start, end uint64
		words := strings.Fields(maps.Text())
		if len(words) < 5 {
			return ""
		}
		if n, _ := fmt.Sscanf(words[0], "%x-%x", &start, &end); n < 2 {
			return ""
		}
		if end <= addr {
			continue
		}
		isFile := len(words) > 5
		// Equivalent to memory without a file.
		isMemory := isFile && (words[5] == "/dev/zero" || strings.HasPrefix(words[5], "/dev/shm/"))
		switch {
		case start > addr:
			return notMapped
		case isFile && !isMemory && (strings.HasPrefix(words[5], "/dev/") || strings.HasPrefix(words[5], "/dmabuf:")):
			return ofDevice
		case !strings.Contains(words[1], "r"):
			return notReadable
		case writes && !strings.Contains(words[1], "w"):
			return notWritable
		case isFile && !isMemory && strings.Contains(words[1], "s"):
			return sharedFile
		}
		if end-addr >= size {
			return ""
		}
		addr, size = end, size-(end-addr)
	}
	if maps.Err() != nil {
		return ""
	}
	return notMapped
}

// MappingHint returns a hint if the way in which memory is mapped prevents a
// device from using it. writes says whether the device would write to it. The
// hint also applies to a device in the program.
func MappingHint(addr, size uint64, writes bool) string { return here.memory(addr, size, writes) }

// GroupHint returns a hint if a control group permits no more objects on a
// device, or "".
func GroupHint(device string) string {
	return ofMachine(func(m machine) string { return m.group(device, "hca_object") })
}

// WithFiles adds a hint to an error that matches syscall.EMFILE, if this
// process can open few more files, or none. It returns other errors unchanged.
func WithFiles(err error) error {
	if !errors.Is(err, syscall.EMFILE) {
		return err
	}
	if full := here.openFiles(); full != "" {
		return fmt.Errorf("%w: %s", err, full)
	}
	return err
}

// HandlesHint returns a hint if a control group permits no more open devices,
// or "".
func HandlesHint() string { return ofMachine(machine.handles) }

// LockedHint returns a hint if this process may not lock that many more bytes
// of memory, or "".
func LockedHint(bytes int) string {
	return ofMachine(func(m machine) string { return m.locked(int64(bytes)) })
}

// ofMachine returns the hint that look finds, or "" if the device is part of
// the program.
func ofMachine(look func(machine) string) string {
	if inProgram.Load() {
		return ""
	}
	return look(here)
}
