// SPDX-License-Identifier: Apache-2.0

package share_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/share"
)

// Nil and zero objects answer with an error.
func TestNotOpened(t *testing.T) {
	type objects struct {
		device *ibverbs.Device
		pd     *ibverbs.PD
		mr     *ibverbs.MR
		shared *share.ImportedMR
	}
	zero := objects{new(ibverbs.Device), new(ibverbs.PD), new(ibverbs.MR), new(share.ImportedMR)}
	for name, call := range map[string]func(objects) error{
		"ExportDevice":     func(o objects) error { return failed(share.ExportDevice(o.device)) },
		"ImportDevice":     func(objects) error { return failed(share.ImportDevice(nil)) },
		"ExportPD":         func(o objects) error { return failed(share.ExportPD(o.pd)) },
		"ImportPD":         func(o objects) error { return failed(share.ImportPD(o.device, 1)) },
		"ExportMR":         func(o objects) error { return failed(share.ExportMR(o.mr)) },
		"ImportMR":         func(o objects) error { return failed(share.ImportMR(o.pd, share.MRExport{})) },
		"ImportedMR.Close": func(o objects) error { return o.shared.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, call(zero), os.ErrInvalid)
			require.ErrorIs(t, call(objects{}), os.ErrInvalid)
		})
	}
}

func TestImportOfSomethingElse(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	_, err = share.ImportDevice(file)
	require.EqualError(t, err, "ibv_import_device ("+file.Name()+"): the file is not from ExportDevice")
	require.NoError(t, file.Close())
	_, err = share.ImportDevice(file)
	require.ErrorIs(t, err, os.ErrClosed)
}

// failed returns the error of a call that returns a value too.
func failed[T any](_ T, err error) error { return err }
