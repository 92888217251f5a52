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

// Export returns the open device as a file that another process can import.
// Send the file over a Unix socket (SCM_RIGHTS) or pass it through exec
// (exec.Cmd.ExtraFiles); the other process calls ImportDevice. The caller must
// close the file.
//
// The other process can then import objects of the device: a PD by its Handle,
// an MR or DM by its Export, which must be sent along. The processes must agree
// when to close: after the original is closed, an import can only be closed.
// The memory of a region stays in the process that registered it.
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

// ImportDevice opens a device that another process has opened and exported, and
// shares its objects; see ibv_import_device(3). The caller must still close the
// file. Few drivers support this; with the others it fails with
// errors.ErrUnsupported.
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
		// A driver that fails has closed the descriptor. If no driver was
		// asked, the descriptor is still open.
		if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.ENODEV) {
			_ = os.NewFile(uintptr(fd), "").Close() // a duplicate, not written to
		}
		return nil, wrap(file.Name(), err)
	}
	return openedContext(raw, cString(raw.Device.Name[:])), nil
}

// Handle returns the number that a process which has imported the device passes
// to ImportPD.
func (pd *PD) Handle() uint32 { return pd.handle }

// ImportPD imports a protection domain of the process that exported the device;
// see ibv_import_pd(3). Closing the import does not close the original.
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

// MRExport describes a memory region to a process that imports it.
type MRExport struct {
	Handle uint32
	Addr   uint64 // address of the memory in the process that registered it
	Len    uint64 // bytes
}

// Export describes the region to a process that has imported the device and the
// protection domain.
func (mr *MR) Export() MRExport {
	return MRExport{Handle: mr.handle, Addr: mr.addr(), Len: uint64(mr.size)}
}

// ImportedMR is a memory region of another process. This process has the
// region's keys but cannot access its memory.
type ImportedMR struct{ mr *MR }

// ImportMR imports a memory region of the process that exported the device; see
// ibv_import_mr(3). The domain must be imported too.
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

// LKey returns the key that local work requests use for the region, with
// addresses of the process that registered it.
func (mr *ImportedMR) LKey() uint32 { return mr.mr.lkey }

// Len returns the size of the region in bytes.
func (mr *ImportedMR) Len() int { return mr.mr.size }

// Sub returns n bytes of the region starting at offset, for a work request of
// this process. They cannot be sent inline. If they are outside the region, the
// batch refuses the request.
func (mr *ImportedMR) Sub(offset, n int) Segment {
	if mr == nil {
		return Segment{}
	}
	return mr.mr.Sub(offset, n)
}

// Remote describes the whole region to a peer. The region's access flags limit
// what the peer may do.
func (mr *ImportedMR) Remote() RemoteBuffer { return mr.mr.Remote() }

// Raw returns the C object, which is valid until Close.
func (mr *ImportedMR) Raw() *libibverbs.Mr { return mr.mr.raw }

// Close releases the import. The region stays registered in the other process.
func (mr *ImportedMR) Close() error {
	return mr.self().Close(nil, func() error { return libibverbs.UnimportMr(mr.mr.raw) })
}

func (mr *ImportedMR) self() *object.Object {
	if mr == nil {
		return nil
	}
	return mr.mr.self()
}
