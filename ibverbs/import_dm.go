package ibverbs

import (
	"fmt"
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// DMExport is what another process needs to import device memory.
type DMExport struct {
	Handle uint32
	Len    uint64 // bytes
}

// Export describes the memory to a process that has imported the device.
func (dm *DM) Export() DMExport { return DMExport{Handle: dm.handle, Len: uint64(dm.size)} }

// ImportDM makes device memory of the process that exported the device usable
// in this one; see ibv_import_dm(3). Its Close leaves the original alone.
func (d *Device) ImportDM(export DMExport) (*DM, error) {
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	what := fmt.Sprintf("DM %d of %d bytes of %s", export.Handle, export.Len, d.Name())
	if export.Len == 0 || export.Len > math.MaxInt {
		return nil, cerr.Refuse("ibv_import_dm", what, "Len is %d, not from 1 to %d", export.Len, math.MaxInt)
	}
	raw, err := libibverbs.ImportDm(d.raw, export.Handle)
	if err != nil {
		return nil, wrap(what, err)
	}
	dm := &DM{device: d, raw: raw, handle: raw.Handle, size: int(export.Len), imported: true}
	dm.object.Init("imported "+what, &d.object)
	return dm, nil
}
