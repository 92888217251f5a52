package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEventType(t *testing.T) {
	for i, tt := range []struct {
		eventType EventType
		text      string // what ibv_event_type_str says
		class     EventClass
		fatal     bool
	}{
		{EventCQError, "CQ error", EventClassCQ, true},
		{EventQPFatal, "local work queue catastrophic error", EventClassQP, true},
		{EventQPRequestError, "invalid request local work queue error", EventClassQP, true},
		{EventQPAccessError, "local access violation work queue error", EventClassQP, true},
		{EventCommEstablished, "communication established", EventClassQP, false},
		{EventSQDrained, "send queue drained", EventClassQP, false},
		{EventPathMigrated, "path migrated", EventClassQP, false},
		{EventPathMigrateError, "path migration request error", EventClassQP, false},
		{EventDeviceFatal, "local catastrophic error", EventClassDevice, true},
		{EventPortActive, "port active", EventClassPort, false},
		{EventPortError, "port error", EventClassPort, false},
		{EventLIDChange, "LID change", EventClassPort, false},
		{EventPKeyChange, "P_Key change", EventClassPort, false},
		{EventSMChange, "SM change", EventClassPort, false},
		{EventSRQError, "SRQ catastrophic error", EventClassSRQ, true},
		{EventSRQLimitReached, "SRQ limit reached", EventClassSRQ, false},
		{EventLastWQEReached, "last WQE reached", EventClassQP, false},
		{EventClientReregister, "client reregistration", EventClassPort, false},
		{EventGIDChange, "GID table change", EventClassPort, false},
		{EventWQFatal, "WQ fatal", EventClassWQ, true},
		{EventDeviceSpeedChange, "Device link speed change", EventClassDevice, false},
		{21, "unknown", EventClassOther, false},
		{1<<32 - 1, "unknown", EventClassOther, false},
	} {
		if i <= 21 {
			require.EqualValues(t, i, tt.eventType, "the table has them all")
		}
		require.Equal(t, tt.text, tt.eventType.String())
		require.Equal(t, tt.class, tt.eventType.Class(), tt.text)
		require.Equal(t, tt.fatal, tt.eventType.Fatal(), tt.text)
	}
}

func TestEventClassString(t *testing.T) {
	for class, want := range map[EventClass]string{
		EventClassDevice: "device", EventClassPort: "port", EventClassCQ: "CQ", EventClassQP: "QP",
		EventClassSRQ: "SRQ", EventClassWQ: "WQ", EventClassOther: "other", -1: "other", 99: "other",
	} {
		require.Equal(t, want, class.String())
	}
}
