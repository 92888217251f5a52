package ibverbs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/netpoll"
	"github.com/verbena-go/verbena/internal/object"
)

// Export returns the open device as a file for another process, which gets it
// over a Unix socket (SCM_RIGHTS) or by exec (exec.Cmd.ExtraFiles), and passes
// it to ImportDevice. The caller closes the file.
//
// What this process makes on the device can then be imported there: a PD by
// its Handle, an MR or DM by its Export, which must be sent along. The processes
// have to agree on who closes what when: once the original is closed, all that
// may be done with an import is to close it too. The memory of a region stays
// that of the process which registered it.
func (d *Device) Export() (*os.File, error) {
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	fd, err := netpoll.Dup(int(d.raw.CmdFd))
	if err != nil {
		return nil, fmt.Errorf("export %s: %w", d.Name(), err)
	}
	return os.NewFile(uintptr(fd), d.Name()), nil
}

// ImportDevice opens a device that another process has opened and exported,
// and shares its objects; see ibv_import_device(3). The file stays the
// caller's. Few drivers can do this; the others give errors.ErrUnsupported.
func ImportDevice(file *os.File) (*Device, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("import a device: %w", err)
	}
	if info.Mode()&os.ModeCharDevice == 0 {
		return nil, cerr.Refuse("ibv_import_device", file.Name(), "the file is not from Device.Export")
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("import a device: %w", err)
	}
	fd := -1
	var dupErr error
	if err := conn.Control(func(f uintptr) { fd, dupErr = netpoll.Dup(int(f)) }); err != nil || dupErr != nil {
		return nil, fmt.Errorf("import a device: %w", errors.Join(err, dupErr))
	}
	raw, err := libibverbs.ImportDevice(int32(fd))
	if err != nil {
		// A driver that fails has closed the descriptor; if no driver was
		// asked, it is open.
		if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.ENODEV) {
			_ = os.NewFile(uintptr(fd), "").Close() // a duplicate, not written to
		}
		return nil, wrap(file.Name(), err)
	}
	return openedContext(raw, cString(raw.Device.Name[:])), nil
}

// Handle returns the number by which a process that has imported the device
// can import the domain.
func (pd *PD) Handle() uint32 { return pd.handle }

// ImportPD makes a protection domain of the process that exported the device
// usable in this one; see ibv_import_pd(3). Its Close leaves the original
// alone.
func (d *Device) ImportPD(handle uint32) (*PD, error) {
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	raw, err := libibverbs.ImportPd(d.raw, handle)
	if err != nil {
		return nil, wrap(fmt.Sprintf("PD %d of %s", handle, d.Name()), err)
	}
	pd := &PD{device: d, raw: raw, handle: raw.Handle, imported: true}
	pd.object.Init(fmt.Sprintf("imported PD %d of %s", handle, d.Name()), &d.object)
	return pd, nil
}

// MRExport is what another process needs to import a memory region.
type MRExport struct {
	Handle uint32
	Addr   uint64 // of the memory, in the process that registered it
	Len    uint64 // bytes
}

// Export describes the region to a process that has imported the device and
// the protection domain.
func (mr *MR) Export() MRExport {
	return MRExport{Handle: mr.handle, Addr: mr.addr(), Len: uint64(mr.size)}
}

// ImportedMR is a memory region of another process. This process has its keys,
// but not its memory.
type ImportedMR struct{ mr *MR }

// ImportMR makes a memory region of the process that exported the device
// usable in this one; the domain must be an import too. See ibv_import_mr(3).
func (pd *PD) ImportMR(export MRExport) (*ImportedMR, error) {
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	what := fmt.Sprintf("MR of handle %d on %s", export.Handle, pd.object.Name())
	if export.Len > math.MaxInt {
		return nil, cerr.Refuse("ibv_import_mr", what, "Len is %d, more than %d", export.Len, math.MaxInt)
	}
	raw, err := libibverbs.ImportMr(pd.raw, export.Handle)
	if err != nil {
		return nil, wrap(what, err)
	}
	mr := &MR{raw: raw, handle: raw.Handle, region: region{
		pd: pd, start: export.Addr, size: int(export.Len), lkey: raw.Lkey, rkey: raw.Rkey,
	}}
	mr.itself = mr
	mr.object.Init(fmt.Sprintf("imported MR %#x of %s", raw.Lkey, pd.device.Name()), &pd.object)
	return &ImportedMR{mr}, nil
}

// LKey returns the key that local requests name the region by, with addresses
// of the process that registered it.
func (mr *ImportedMR) LKey() uint32 { return mr.mr.lkey }

// Len returns the size in bytes.
func (mr *ImportedMR) Len() int { return mr.mr.size }

// Sub returns n bytes of the region from offset on, for a work request of this
// process with that process's memory. They cannot be sent inline. If the region
// does not have them, posting the request fails.
func (mr *ImportedMR) Sub(offset, n int) Segment {
	if mr == nil {
		return Segment{}
	}
	return mr.mr.Sub(offset, n)
}

// Remote describes the whole region to a peer, which may use it as far as the
// region's access flags allow.
func (mr *ImportedMR) Remote() RemoteBuffer { return mr.mr.Remote() }

// Raw returns the C object, which is valid until Close.
func (mr *ImportedMR) Raw() *libibverbs.Mr { return mr.mr.raw }

// Close forgets the region; the process that registered it still has it.
func (mr *ImportedMR) Close() error {
	return mr.self().Close(nil, func() error { return libibverbs.UnimportMr(mr.mr.raw) })
}

func (mr *ImportedMR) self() *object.Object {
	if mr == nil {
		return nil
	}
	return mr.mr.self()
}
