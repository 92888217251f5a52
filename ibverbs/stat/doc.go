// SPDX-License-Identifier: Apache-2.0

// Package stat tells what RDMA devices have counted, and which processes have
// objects on them: for programs that watch a machine.
//
// [Devices] reads the counters of all devices and ports from the kernel's
// sysfs, those of InfiniBand's performance management (counters), those of the
// driver (hw_counters), and those of the kernel's connection manager. Each
// [Counter] has the kernel's name; if that is known here, it also has a unit
// and a description. Data is in bytes. As any user can read them, a program
// needs no privileges:
//
//	devices, err := stat.Devices()
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
// Nothing here opens a device or calls C: programs that import this package
// alone can be built without cgo. The device in user space is not in sysfs, and
// has no counters here: softroce.Processes has them.
package stat
