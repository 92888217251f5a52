// SPDX-License-Identifier: Apache-2.0

package share

import (
	"fmt"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/sealed"
)

// ExportPD returns the number to pass to [ImportPD] in a process that has
// imported the device.
func ExportPD(pd *ibverbs.PD) (handle uint32, err error) {
	o := sibling.ObjectOf(pd)
	if err := o.Use(); err != nil {
		return 0, err
	}
	defer o.Done()
	return pd.Raw().Handle, nil
}

// ImportPD imports a protection domain of the process that exported the device;
// see ibv_import_pd(3). Closing the import does not close the original.
func ImportPD(device *ibverbs.Device, handle uint32) (*ibverbs.PD, error) {
	parent := sibling.ObjectOf(device)
	if err := parent.Use(); err != nil {
		return nil, err
	}
	defer parent.Done()
	raw, err := libibverbs.ImportPd(device.Raw(), handle)
	if err != nil {
		return nil, sibling.Wrap(fmt.Sprintf("PD %d of %s", handle, device.Name()), err)
	}
	return sealed.Open(device.Internals()).ImportPD(raw), nil
}
