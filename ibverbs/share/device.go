// SPDX-License-Identifier: Apache-2.0

package share

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/netpoll"
	"github.com/verbena-go/verbena/internal/sealed"
)

// ExportDevice returns the open device as a file that another process can
// import. Send the file over a Unix socket (SCM_RIGHTS) or pass it through exec
// (exec.Cmd.ExtraFiles); the other process calls [ImportDevice]. The caller
// must close the file. If the device has no descriptor, the error matches
// errors.ErrUnsupported.
func ExportDevice(device *ibverbs.Device) (*os.File, error) {
	o := sibling.ObjectOf(device)
	if err := o.Use(); err != nil {
		return nil, err
	}
	defer o.Done()
	if device.Raw().CmdFd < 0 {
		return nil, fmt.Errorf("export %s: the device has no file descriptor to export: %w", device.Name(), errors.ErrUnsupported)
	}
	fd, err := netpoll.Dup(int(device.Raw().CmdFd))
	if err != nil {
		return nil, fmt.Errorf("export %s: %w", device.Name(), err)
	}
	return os.NewFile(uintptr(fd), device.Name()), nil
}

// ImportDevice opens a device that another process has opened and exported with
// [ExportDevice]. The device that it returns shares the objects of the exported
// one; see ibv_import_device(3). ImportDevice does not close the file.
//
// Few drivers support imports. With the others, ImportDevice fails with an
// error matching errors.ErrUnsupported. The device in user space supports
// imports within a process; ImportDevice fails in the same way if another
// process has exported it.
func ImportDevice(file *os.File) (*ibverbs.Device, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("import a device: %w", err)
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
		// A driver that fails has closed the descriptor. If C has
		// called no driver, the descriptor is still open. Drivers have
		// character devices.
		driverless := info.Mode()&os.ModeCharDevice == 0
		if driverless || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.ENODEV) {
			_ = os.NewFile(uintptr(fd), "").Close() // fd is a duplicate, and nothing was written to it
		}
		if driverless && !errors.Is(err, syscall.EOPNOTSUPP) {
			return nil, cerr.Refuse("ibv_import_device", file.Name(), "the file is not from ExportDevice")
		}
		return nil, sibling.Wrap(file.Name(), err)
	}
	device := new(ibverbs.Device)
	sealed.Open(device.Internals()).InitImported(raw)
	return device, nil
}
