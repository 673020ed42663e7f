/* The least that sampling a JVM's heap costs: an agent whose callback does nothing.
 *
 * -agentpath:.../jvm_sampler.so=BYTES       has the JVM call it for a sample each BYTES on average.
 * -agentpath:.../jvm_sampler.so=BYTES,tag   also marks each sample, and has the JVM tell when one has died, which is what
 *                                           any profiler must have done that tells what is alive. */
#include <jvmti.h>
#include <stdlib.h>
#include <string.h>

static int tags;

static void JNICALL sampled(jvmtiEnv *jvmti, JNIEnv *jni, jthread thread, jobject object, jclass type, jlong size)
{
    (void)jni, (void)thread, (void)type, (void)size;
    if (tags)
        (*jvmti)->SetTag(jvmti, object, 1);
}

static void JNICALL died(jvmtiEnv *jvmti, jlong tag)
{
    (void)jvmti, (void)tag;
}

JNIEXPORT jint JNICALL Agent_OnLoad(JavaVM *vm, char *options, void *reserved)
{
    (void)reserved;
    jvmtiEnv *jvmti;
    if ((*vm)->GetEnv(vm, (void **)&jvmti, JVMTI_VERSION_11) != JNI_OK)
        return JNI_ERR;
    tags = strstr(options, ",tag") != NULL;
    jvmtiCapabilities wanted = {.can_generate_sampled_object_alloc_events = 1,
                                .can_tag_objects = (unsigned)tags,
                                .can_generate_object_free_events = (unsigned)tags};
    jvmtiEventCallbacks callbacks = {.SampledObjectAlloc = sampled, .ObjectFree = died};
    if ((*jvmti)->AddCapabilities(jvmti, &wanted) != JVMTI_ERROR_NONE ||
        (*jvmti)->SetEventCallbacks(jvmti, &callbacks, sizeof callbacks) != JVMTI_ERROR_NONE ||
        (*jvmti)->SetHeapSamplingInterval(jvmti, atoi(options)) != JVMTI_ERROR_NONE ||
        (*jvmti)->SetEventNotificationMode(jvmti, JVMTI_ENABLE, JVMTI_EVENT_SAMPLED_OBJECT_ALLOC, NULL) != JVMTI_ERROR_NONE ||
        (tags && (*jvmti)->SetEventNotificationMode(jvmti, JVMTI_ENABLE, JVMTI_EVENT_OBJECT_FREE, NULL) != JVMTI_ERROR_NONE))
        return JNI_ERR;
    return JNI_OK;
}
