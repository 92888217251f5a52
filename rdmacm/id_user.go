package rdmacm

import "github.com/verbena-go/verbena/generated/librdmacm"

// WriteUserEvent puts an EventUser with a status and a number, Event.Arg, among
// the id's events, for whoever reads its channel; see rdma_write_cm_event(3).
// It needs rdma-core 60 and a kernel that has it, and gives
// errors.ErrUnsupported without the former.
func (id *ID) WriteUserEvent(status int, arg uint64) error {
	return id.call(func() error {
		return librdmacm.WriteCmEvent(id.raw, EventUser, int32(status), arg)
	})
}
