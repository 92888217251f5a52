package ibverbs_test

import (
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/verbena-go/verbena/ibverbs"
)

// List the GIDs of all ports, as show_gids does, and the one to connect with.
func ExampleDevice_QueryGIDTable() {
	device, err := ibverbs.Open("")
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	entries, err := device.QueryGIDTable()
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range entries {
		fmt.Println(e.Port, e.Index, e.GID, e.GID.Addr(), e.Type, e.NetDev)
	}
	best, err := device.BestGID(1, ibverbs.GIDOptions{Types: []ibverbs.GIDType{ibverbs.GIDTypeRoCEv2}})
	if err != nil {
		log.Fatal(err) // ErrNoGID lists what there is
	}
	fmt.Println("best:", best)
}

// Ask a device what it can do before relying on it.
func ExampleDevice_QueryDevice() {
	var device *ibverbs.Device // opened before

	attr, err := device.QueryDevice()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(attr.FirmwareVersion, attr.MaxQP, "queue pairs of", attr.MaxQPWR, "requests")
	if attr.RSS.QPTypes.Has(ibverbs.QPTypeRawPacket) {
		fmt.Println("spreads what it receives over up to", attr.RSS.MaxIndirectionTableSize, "queues")
	}
	if attr.CoreClock == 0 {
		fmt.Println("its completions have no timestamps")
	}
}

// Hand an open device with memory on it to another process, which this one
// starts. The other one is ExampleImportDevice.
func ExampleDevice_Export() {
	var device *ibverbs.Device // opened before
	var pd *ibverbs.PD
	var mr *ibverbs.MR

	file, err := device.Export()
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	export := mr.Export()
	fmt.Println("start a process with", file.Name(), "in exec.Cmd.ExtraFiles, and tell it",
		pd.Handle(), export.Handle, export.Addr, export.Len)
}

// Use the device and the memory of the process that started this one.
func ExampleImportDevice() {
	file := os.NewFile(3, "device") // the first of exec.Cmd.ExtraFiles
	defer file.Close()
	var pdHandle uint32
	var export ibverbs.MRExport // as the other process has told them

	device, err := ibverbs.ImportDevice(file)
	if errors.Is(err, errors.ErrUnsupported) {
		log.Fatal("this device's driver cannot share it: ", err)
	}
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	pd, err := device.ImportPD(pdHandle)
	if err != nil {
		log.Fatal(err)
	}
	defer pd.Close()
	mr, err := pd.ImportMR(export)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	fmt.Printf("tell a peer: %+v\n", mr.Remote())
}
