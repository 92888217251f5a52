// SPDX-License-Identifier: Apache-2.0

// Package stat reads the counters of RDMA devices and lists the objects that
// processes have on them. It is for programs that monitor a machine.
//
// [Sysfs.Devices] reads the counters of all devices and ports from the kernel's
// sysfs: those of InfiniBand's performance management (counters), those of the
// driver (hw_counters), and those of the kernel's connection manager. Each
// [Counter] has the kernel's name. A counter that this package knows also has a
// unit and a description. Data is in bytes. Any user can read the counters:
//
//	devices, err := stat.Default.Devices()
//	if err != nil {
//		return err
//	}
//	for _, d := range devices {
//		for _, p := range d.Ports {
//			for _, c := range p.Counters {
//				fmt.Println(d.Name, p.Port, c.Name, c.Value, c.Unit)
//			}
//		}
//	}
//
// [AllResources] asks the kernel for the queue pairs, completion queues, memory
// regions, protection domains and cm_ids of all processes, as "rdma resource
// show" of iproute2 does.
//
// The package neither opens devices nor calls C, so a program that imports no
// other package of this module can be built without cgo. The device in user
// space is not in sysfs; softroce.Processes returns its counters.
package stat
